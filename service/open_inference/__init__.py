"""The Open Inference Protocol (v2), which KServe, Triton and MLServer speak: their clients can ask us, too."""
