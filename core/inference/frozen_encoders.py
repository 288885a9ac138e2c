"""Frozen encoders that need nothing but installed libraries, in the service and in every published model."""

import os
from collections.abc import Callable
from importlib.metadata import entry_points
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..kprior.model.spec import Input
from .onnx_inputs import to_tensors
from .text_hashing import encode_texts

Numbers = NDArray[Any]
Encode = Callable[[Numbers], Numbers]
"""Raw inputs (n, ...) -> features (n, D)."""
ROWS_PER_STEP = 256
PLUGINS = "amend.encoders"
"""Entry point group of encoders from installed packages."""


def onnx_encoder(content: bytes, given: Input) -> Encode:
    """An ONNX model in this process, for published models. The service and its workers use a child process."""
    os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")  # read when the module is imported
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.add_session_config_entry("session.load_model_format", "ONNX")  # never what the first bytes suggest
    session = onnxruntime.InferenceSession(content, options, providers=["CPUExecutionProvider"])
    inputs = [{"name": one.name, "type": one.type, "shape": list(one.shape)} for one in session.get_inputs()]
    name = session.get_outputs()[0].name
    rows = 1 if any(one["shape"][:1] == [1] for one in inputs) else ROWS_PER_STEP

    def encode(x: Numbers) -> Numbers:
        parts = [x[i : i + rows] for i in range(0, len(x), rows)]
        made = [session.run([name], to_tensors(inputs, given, part))[0] for part in parts]
        return np.concatenate(made).reshape(len(x), -1).astype(np.float32)

    return encode


def plugin_encoder(name: str, features: int) -> Encode:
    """The encoder of an installed package, for published models."""
    found = list(entry_points(group=PLUGINS, name=name))
    if not found:
        raise ValueError(f"No installed package provides the encoder {name!r} (entry point group {PLUGINS}).")
    return encode_texts(found[0].load()().encode, features)
