"""A published version as MLflow loads it: data frames in, the service's own answers out."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from ..kprior.model.categories import spell, spellings_of, unseen_code
from ..kprior.model.spec import CategoryColumn, Column, Input, dtype_of
from .loaded_model import LoadedModel
from .predictions import to_predictions

LARGEST = float(np.finfo(np.float32).max)


class PublishedModel:
    """What MLflow asks for predictions."""

    def __init__(self, path: str) -> None:
        self.model = LoadedModel.from_file(path)

    def predict(self, given: Any) -> pd.DataFrame:
        """A row of outputs for each row of inputs.

        A table has its columns by name, categories as their values, missing values as None or NaN. Vectors and
        images are numbers in any form: columns of whatever names, or an array.
        """
        spec = self.model.spec
        described = spec["input"]
        x = to_codes(described["columns"], given) if described["kind"] == "table" else np.asarray(given, np.float64)
        x = check_numbers(x, described)
        return pd.DataFrame(to_predictions(spec["target"], self.model.predict_means(x)) if len(x) else [])


def to_codes(columns: list[Column], given: Any) -> NDArray[np.float64]:
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
        made[:, j] = find_codes(column, values)
    return made


def find_codes(column: CategoryColumn, values: Any) -> list[float]:
    """The code of each value, as the service finds it."""
    codes, unseen = spellings_of(column["values"]), unseen_code(column)
    made = []
    for row, value in enumerate(values):
        if pd.isna(value) or value == "":
            made.append(math.nan)
            continue
        code = codes.get(spell(value), unseen)
        if code is None:
            raise ValueError(f"row {row}: not among the values of the column {column['name']!r}")
        made.append(code)
    return made


def check_numbers(x: NDArray[np.float64], described: Input) -> NDArray[Any]:
    """The type in which examples are stored; ValueError for what the service would refuse."""
    if dtype_of(described) == "uint8":
        if not ((x >= 0) & (x <= 255) & (x == np.floor(x))).all():
            raise ValueError("pixels are whole numbers from 0 to 255")
        return x.astype(np.uint8)
    missing = np.isnan(x) if described["kind"] == "table" else np.zeros_like(x, bool)
    if not (missing | (np.abs(x) <= LARGEST)).all():
        raise ValueError("a number is not finite, or too large for 32 bits")
    return np.ascontiguousarray(x, np.float32)


def _load_pyfunc(path: str) -> PublishedModel:
    """What MLflow calls."""
    return PublishedModel(path)
