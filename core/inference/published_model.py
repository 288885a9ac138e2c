"""A published version as MLflow loads it: data frames in, the service's own answers out."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from ..kprior.model.categories import spell, spellings_of, unseen_code
from ..kprior.model.dates import days_of, truth_of
from ..kprior.model.spec import BooleanColumn, CategoryColumn, Column, DateColumn, Input, dtype_of
from .loaded_model import LoadedModel
from .predictions import to_predictions

MAX_FLOAT32 = float(np.finfo(np.float32).max)


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
        return pd.DataFrame(to_predictions(spec, self.model.predict_means(x)) if len(x) else [])


def to_codes(columns: list[Column], given: Any) -> NDArray[np.float64]:
    """Named columns -> numbers, categories as the place among their values, dates as days."""
    frame = pd.DataFrame(given)
    made = np.empty((len(frame), len(columns)), np.float64)
    for j, column in enumerate(columns):
        if column["name"] not in frame.columns:
            raise ValueError(f"the column {column['name']!r} is missing")
        values = frame[column["name"]]
        if column["type"] == "number":
            made[:, j] = values.astype("float64")
        else:
            made[:, j] = read_each(reader_of(column), column["name"], values)
    return made


def read_each(read: Callable[[object], float], name: str, values: Any) -> list[float]:
    made = []
    for row, value in enumerate(values):
        try:
            made.append(math.nan if pd.isna(value) else read(value))
        except ValueError as error:
            raise ValueError(f"row {row}: {name!r}: {error}") from None
    return made


def reader_of(column: BooleanColumn | DateColumn | CategoryColumn) -> Callable[[object], float]:
    """What makes a number of a value as the service does."""
    if column["type"] != "category":
        return days_of if column["type"] == "date" else truth_of
    codes, unseen = {"": math.nan, **spellings_of(column["values"])}, unseen_code(column)

    def read(value: object) -> float:
        code = codes.get(spell(value), unseen)
        if code is None:
            raise ValueError("not among the values of this column")
        return code

    return read


def check_numbers(x: NDArray[np.float64], described: Input) -> NDArray[Any]:
    """The type in which examples are stored; ValueError for what the service would refuse."""
    if dtype_of(described) == "uint8":
        if not ((x >= 0) & (x <= 255) & (x == np.floor(x))).all():
            raise ValueError("pixels are whole numbers from 0 to 255")
        return x.astype(np.uint8)
    missing = np.isnan(x) if described["kind"] == "table" else np.zeros_like(x, bool)
    if not (missing | (np.abs(x) <= MAX_FLOAT32)).all():
        raise ValueError("a number is not finite, or too large for 32 bits")
    return np.ascontiguousarray(x, np.float32)


def _load_pyfunc(path: str) -> PublishedModel:
    """What MLflow calls."""
    return PublishedModel(path)
