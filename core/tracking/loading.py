"""A published version as MLflow loads it: data frames in, the service's own answers out.

This file, and the few that it imports, are copied into each published model (see `packaging`): it runs where this
project is not installed, and imports nothing of ours but what predicting needs.
"""

from __future__ import annotations

import json
import math
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from safetensors import safe_open

from core.kprior.model.predictor import Predictor
from core.kprior.model.spec import Column, Input, PredictorSpec, dtype_of
from core.models.means import Means
from core.models.outputs import outputs

LARGEST = float(np.finfo(np.float32).max)
SLICE = 1024
"""As in the service: what a network makes of its inputs on the way may be much larger than they are."""


class Published:
    """A version with its weights."""

    def __init__(self, path: str) -> None:
        with safe_open(path, "pt") as file:
            self.spec: PredictorSpec = json.loads(file.metadata()["amend"])["spec"]
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        predictor = Predictor(self.spec)
        encoder = {k.removeprefix("encoder."): v for k, v in tensors.items() if k.startswith("encoder.")}
        predictor.encoder.load_state_dict(encoder)
        self.shape = predictor.encoder.raw_shape
        self.means = Means(predictor, tensors["w"])

    def predict(self, given: Any) -> pd.DataFrame:
        """A row of outputs for each row of inputs.

        A table has its columns by name, categories as their values, missing values as None or NaN. Vectors and
        images are numbers in any form: columns of whatever names, or an array.
        """
        described = self.spec["input"]
        x = coded(described["columns"], given) if described["kind"] == "table" else np.asarray(given, np.float64)
        x = stored(x.reshape(len(x), *self.shape), described)
        means = [self.means.means(x[i : i + SLICE]) for i in range(0, len(x), SLICE)]
        return pd.DataFrame(outputs(self.spec["target"], np.concatenate(means)) if means else [])


def coded(columns: list[Column], given: Any) -> NDArray[np.float64]:
    """Named columns -> numbers, categories as the place among their values."""
    frame = pd.DataFrame(given)
    made = np.empty((len(frame), len(columns)), np.float64)
    for j, column in enumerate(columns):
        if column["name"] not in frame.columns:
            raise ValueError(f"the column {column['name']!r} is missing")
        values = frame[column["name"]]
        if column["type"] == "number":
            made[:, j] = values.astype("float64")
            continue
        codes = {value: float(code) for code, value in enumerate(column["values"])}
        made[:, j] = [math.nan if pd.isna(v) else codes.get(v, -1.0) for v in values]
        if (made[:, j] == -1).any():
            row = int((made[:, j] == -1).argmax())
            raise ValueError(f"row {row}: not among the values of the column {column['name']!r}")
    return made


def stored(x: NDArray[np.float64], described: Input) -> NDArray[Any]:
    """The type in which examples are stored; ValueError for what the service would refuse."""
    if dtype_of(described) == "uint8":
        if not ((x >= 0) & (x <= 255) & (x == np.floor(x))).all():
            raise ValueError("pixels are whole numbers from 0 to 255")
        return x.astype(np.uint8)
    missing = np.isnan(x) if described["kind"] == "table" else np.zeros_like(x, bool)
    if not (missing | (np.abs(x) <= LARGEST)).all():
        raise ValueError("a number is not finite, or too large for 32 bits")
    return np.ascontiguousarray(x, np.float32)


def _load_pyfunc(path: str) -> Published:
    """What MLflow calls."""
    return Published(path)
