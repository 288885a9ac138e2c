"""The Open Inference Protocol (v2), so that clients of KServe, Triton and MLServer can use this service."""
