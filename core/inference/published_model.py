"""A published version as MLflow loads it: data frames in, the same predictions as the service out."""

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from ..kprior.model.categories import spell, spellings_of, unseen_code
from ..kprior.model.dates import days_of, truth_of
from ..kprior.model.spec import dtype_of
from ..kprior.model.spec_types import BooleanColumn, CategoryColumn, Column, DateColumn, Input
from ..kprior.model.text_storage import to_array
from .loaded_model import LoadedModel
from .predictions import to_predictions

MAX_FLOAT32 = float(np.finfo(np.float32).max)


class PublishedModel:
    """The model that MLflow calls for predictions."""

    def __init__(self, path: str) -> None:
        self.model = LoadedModel.from_file(path)

    def predict(self, given: Any) -> pd.DataFrame:
        """Predict a row of outputs for each row of inputs.

        A table has its columns by name, categories as their values, and missing values as None or NaN. Vectors and
        images are numbers: an array, or columns of any names. Texts are a list, or the only column of a data frame.
        """
        spec = self.model.spec
        described = spec["input"]
        if described["kind"] == "text":
            x: NDArray[Any] = to_array(read_texts(given))
            return self.predict_numbers(x)
        x = to_codes(described["columns"], given) if described["kind"] == "table" else np.asarray(given, np.float64)
        return self.predict_numbers(check_numbers(x, described))

    def predict_numbers(self, x: NDArray[Any]) -> pd.DataFrame:
        """Predict a row of outputs for each row of validated inputs."""
        if not len(x):
            return pd.DataFrame([])
        spec = self.model.spec
        return pd.DataFrame(to_predictions(spec, self.model.predict_means(x), threshold=self.model.threshold))


def read_texts(given: Any) -> list[str]:
    """The texts of a list, a series, or the only column of a data frame."""
    values = np.asarray(given, object)
    if values.ndim == 2 and values.shape[1] != 1:
        raise ValueError(f"Expected one column of texts, got {values.shape[1]} columns.")
    texts = values.reshape(-1).tolist()
    for row, text in enumerate(texts):
        if not isinstance(text, str):
            raise ValueError(f"Row {row}: expected a text.")
    return texts


def to_codes(columns: list[Column], given: Any) -> NDArray[np.float64]:
    """Convert named columns to numbers: categories to the index of their value, dates to days."""
    frame = pd.DataFrame(given)
    made = np.empty((len(frame), len(columns)), np.float64)
    for j, column in enumerate(columns):
        if column["name"] not in frame.columns:
            raise ValueError(f"The column {column['name']!r} is missing.")
        values = frame[column["name"]]
        if column["type"] == "number":
            made[:, j] = values.to_numpy("float64", na_value=math.nan)  # also pd.NA, of columns with nullable types
        else:
            made[:, j] = read_each(reader_of(column), column["name"], values)
    return made


def read_each(read: Callable[[object], float], name: str, values: Any) -> list[float]:
    made = []
    for row, value in enumerate(values):
        try:
            made.append(math.nan if pd.isna(value) else read(value))
        except ValueError as error:
            raise ValueError(f"Row {row}: {name!r}: {error}") from None
    return made


def reader_of(column: BooleanColumn | DateColumn | CategoryColumn) -> Callable[[object], float]:
    """The function that converts a value to a number, as the service does."""
    if column["type"] != "category":
        return days_of if column["type"] == "date" else truth_of
    codes, unseen = {"": math.nan, **spellings_of(column["values"])}, unseen_code(column)

    def read(value: object) -> float:
        code = codes.get(spell(value), unseen)
        if code is None:
            raise ValueError("not a value of this column")
        return code

    return read


def check_numbers(x: NDArray[np.float64], described: Input) -> NDArray[Any]:
    """Convert to the type in which examples are stored; raises ValueError where the service would reject the input."""
    if dtype_of(described) == "uint8":
        if not ((x >= 0) & (x <= 255) & (x == np.floor(x))).all():
            raise ValueError("Pixels must be integers from 0 to 255.")
        return x.astype(np.uint8)
    missing = np.isnan(x) if described["kind"] == "table" else np.zeros_like(x, bool)
    if not (missing | (np.abs(x) <= MAX_FLOAT32)).all():
        raise ValueError("A number is not finite or too large for 32 bits.")
    return np.ascontiguousarray(x, np.float32)


def _load_pyfunc(path: str) -> PublishedModel:
    """MLflow's entry point."""
    return PublishedModel(path)
