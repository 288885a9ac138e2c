"""Inputs as callers send them -> one array of numbers, checked against the model's schema; and back.

One class for each kind of input. Each reads decoded JSON and Arrow columns, for examples and predictions alike.
Places of errors begin with the name of the list in the request and the index in it.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from functools import lru_cache
from itertools import chain
from typing import Any, TypeVar

import msgspec
import numpy as np
import pyarrow as pa
import simdjson
from numpy.typing import NDArray

from core.errors import Invalid, Place
from service import columns

Matrix = NDArray[Any]
T = TypeVar("T")
PIECE = 256
"""Inputs that are read from JSON at once."""
LARGEST = float(np.finfo(np.float32).max)


class Inputs(ABC):
    """How one model's inputs are read."""

    json_type: Any
    """What msgspec decodes one input to."""
    width: int
    """Numbers of one input."""
    dtype: str = "float32"
    reads_raw = False
    """Whether inputs can be read from their JSON text, without a Python object for each number."""

    def from_raw(self, texts: list[Any], where: str, bare: bool = False) -> Matrix | None:
        """JSON texts of inputs (bare: without brackets) -> (n, width); None if anything is not as it should be."""
        return None

    def read(
        self, decode: Callable[[Any], list[T]], of: Callable[[T], Any], where: str, few: bool = False
    ) -> tuple[list[T], Matrix]:
        """Objects that hold inputs, and the inputs. `decode` takes what an input shall be decoded to.

        A `few` inputs are read number by number: to prepare for many would take longer.
        """
        if self.reads_raw and not few:
            found = decode(msgspec.Raw)
            x = self.from_raw([of(one) for one in found], where)
            if x is not None:
                return found, x
        # with care: this tells what is wrong, and where
        found = decode(self.json_type)
        return found, self.from_json([of(one) for one in found], where)

    @abstractmethod
    def from_json(self, xs: list[Any], where: str) -> Matrix:
        """Decoded inputs -> (n, width)."""

    @abstractmethod
    def feature_columns(self, names: list[str]) -> dict[str, pa.DataType]:
        """The columns that hold features, with the type to read them as from CSV."""

    def from_columns(self, table: pa.Table, where: str) -> Matrix:
        """Columns (`x` as a list, or one for each feature) -> (n, width)."""
        features = [name for name in table.column_names if name in self.feature_columns(table.column_names)]
        if "x" in table.column_names:
            if features:
                raise Invalid.at((where,), "example_invalid", "give x or a column for each feature, not both")
            return self.checked(columns.lists(table.column("x"), self.width, where), where)
        if len(features) != self.width:
            raise shape_mismatch((where,), f"{len(features)} feature columns; this model has {self.width}")
        made = np.empty((table.num_rows, self.width), np.float64)
        for i, name in enumerate(features):
            made[:, i] = columns.numbers(table.column(name), where, name)
        return self.checked(made, where)

    def checked(self, x: Matrix, where: str) -> Matrix:
        """The stored type, if all numbers are finite in it."""
        if self.dtype == "uint8":
            bad = (x < 0) | (x > 255) | (x != np.floor(x))
            if bad.any():
                raise Invalid.at(place(where, first(bad)), "pixel_invalid", "pixels are whole numbers from 0 to 255")
            return np.ascontiguousarray(x, np.uint8)
        # of NaN neither is true
        if x.size and not (x.max() <= LARGEST and x.min() >= -LARGEST):
            bad = ~(np.abs(x) <= LARGEST)
            message = "a number is not finite, or too large for 32 bits"
            raise Invalid.at(place(where, first(bad)), "number_not_finite", message)
        # a negative zero becomes the zero that it equals: the same content is the same bytes
        made: Matrix = np.ascontiguousarray(x, np.float32) + np.float32(0)
        return made

    @abstractmethod
    def to_json(self, x: Matrix) -> Any:
        """One stored input as it came."""


class VectorInputs(Inputs):
    """Lists of numbers."""

    json_type = list[float]
    reads_raw = True

    def __init__(self, dim: int) -> None:
        self.width = dim

    def from_raw(self, texts: list[Any], where: str, bare: bool = False) -> Matrix | None:
        made = np.empty((len(texts), self.width), np.float64)
        start, between, end = (b"[[", b"],[", b"]]") if bare else (b"[", b",", b"]")
        # by and by: what a processor's cache holds is read faster, and other threads get their turn
        for i in range(0, len(texts), PIECE):
            some = texts[i : i + PIECE]
            text = start + between.join(some) + end
            try:
                rows: Any = simdjson.Parser().parse(text)
                # flat lists of the right length: then the numbers of all of them are the rows
                lists = np.count_nonzero(np.frombuffer(text, np.uint8) == ord("["))
                if lists != len(some) + 1 or any(len(row) != self.width for row in rows):
                    return None
                made[i : i + PIECE].reshape(-1)[:] = np.frombuffer(rows.as_buffer(of_type="d"), np.float64)
            except (TypeError, ValueError, RuntimeError):
                return None
        return self.checked(made, where)

    def from_json(self, xs: list[Any], where: str) -> Matrix:
        if set(map(len, xs)) != {self.width}:
            i = next(i for i, x in enumerate(xs) if len(x) != self.width)
            raise shape_mismatch(place(where, i), f"{len(xs[i])} numbers; this model has {self.width}")
        flat = np.fromiter(chain.from_iterable(xs), np.float64, len(xs) * self.width)
        return self.checked(flat.reshape(len(xs), self.width), where)

    def feature_columns(self, names: list[str]) -> dict[str, pa.DataType]:
        return {name: pa.float64() for name in names if name not in columns.RESERVED}

    def to_json(self, x: Matrix) -> Any:
        return [shortest(v) for v in x]


class ImageInputs(VectorInputs):
    """Channels of rows of pixels; in columns, flat."""

    json_type = list[list[list[float]]]
    reads_raw = False

    def __init__(self, shape: list[int], dtype: str) -> None:
        super().__init__(math.prod(shape))
        self.shape, self.dtype = tuple(shape), dtype

    def from_json(self, xs: list[Any], where: str) -> Matrix:
        try:
            made = np.array(xs, np.float64)
        except ValueError:
            made = np.empty(0)
        if made.shape != (len(xs), *self.shape):
            i = next(i for i, x in enumerate(xs) if shape_of(x) != self.shape)
            raise shape_mismatch(place(where, i), f"not of the shape {list(self.shape)} that this model has")
        return self.checked(made.reshape(len(xs), self.width), where)

    def to_json(self, x: Matrix) -> Any:
        numbers = [int(v) if self.dtype == "uint8" else shortest(v) for v in x]
        return np.array(numbers, object).reshape(self.shape).tolist()


class TableInputs(Inputs):
    """Objects with a field for each column; null is missing. Categories are stored as their number."""

    def __init__(self, described: list[dict[str, Any]]) -> None:
        self.names = [column["name"] for column in described]
        self.codes = [
            {value: float(code) for code, value in enumerate(column["values"])} if "values" in column else None
            for column in described
        ]
        self.width = len(described)
        # fields have names of our own: a column may be called anything
        fields = [(f"c{i}", float | None if codes is None else str | int | None) for i, codes in enumerate(self.codes)]
        rename = {f"c{i}": name for i, name in enumerate(self.names)}
        self.json_type = msgspec.defstruct("Row", fields, rename=rename, forbid_unknown_fields=True)

    def from_json(self, xs: list[Any], where: str) -> Matrix:
        made = np.empty((len(xs), self.width), np.float64)
        for j, values in enumerate(zip(*map(msgspec.structs.astuple, xs), strict=True)):
            codes = self.codes[j]
            if codes is not None:
                values = tuple(math.nan if v is None else codes.get(v, -1.0) for v in values)
                if -1.0 in values:
                    raise self.unknown_category(values.index(-1.0), j, where)
            made[:, j] = [math.nan if v is None else v for v in values]
        return self.finite_or_missing(made, where)

    def feature_columns(self, names: list[str]) -> dict[str, pa.DataType]:
        kinds = [pa.float64() if codes is None else pa.string() for codes in self.codes]
        return dict(zip(self.names, kinds, strict=True))

    def from_columns(self, table: pa.Table, where: str) -> Matrix:
        made = np.empty((table.num_rows, self.width), np.float64)
        for j, name in enumerate(self.names):
            if name not in table.column_names:
                raise shape_mismatch((where,), f"the column {name!r} is missing")
            codes = self.codes[j]
            if codes is None:
                made[:, j] = columns.numbers(table.column(name), where, name, missing=True)
            else:
                made[:, j] = columns.codes(table.column(name), list(codes), where, name)
                if (made[:, j] < 0).any():
                    raise self.unknown_category(first(made[:, j] < 0), j, where)
        return self.finite_or_missing(made, where)

    def unknown_category(self, i: int, j: int, where: str) -> Exception:
        message = "is not among the values of this column"
        return Invalid.at((*place(where, i), self.names[j]), "category_unknown", message)

    def finite_or_missing(self, made: Matrix, where: str) -> Matrix:
        missing = np.isnan(made)
        x = self.checked(np.where(missing, 0.0, made), where)
        x[missing] = math.nan
        return x

    def to_json(self, x: Matrix) -> Any:
        values = {}
        for name, codes, v in zip(self.names, self.codes, x, strict=True):
            values[name] = None if math.isnan(v) else shortest(v) if codes is None else list(codes)[int(v)]
        return values


@lru_cache(maxsize=256)
def made(described: str) -> Inputs:
    given = msgspec.json.decode(described)
    if given["kind"] == "vector":
        return VectorInputs(given["dim"])
    if given["kind"] == "image":
        return ImageInputs(given["shape"], given["dtype"])
    return TableInputs(given["columns"])


def inputs_of(spec: dict[str, Any]) -> Inputs:
    """The reader of a model's inputs, kept for the next request."""
    return made(msgspec.json.encode(spec["input"]).decode())


def place(where: str, i: int) -> Place:
    """Where the i-th input stands: in the `x` of an example, or by itself."""
    return (where, i, "x") if where == "examples" else (where, i)


def first(bad: NDArray[np.bool_]) -> int:
    """The index of the first row with a bad value."""
    return int(bad.reshape(len(bad), -1).any(1).argmax())


def shape_of(x: Any) -> tuple[int, ...] | None:
    """The shape of nested lists; None if ragged."""
    try:
        return np.array(x, np.float64).shape
    except ValueError:
        return None


def shape_mismatch(place: Place, message: str) -> Exception:
    return Invalid.at(place, "example_shape_mismatch", message)


def shortest(v: np.float32) -> float:
    """The shortest decimal that means the same 32-bit number: 0.1, not 0.10000000149011612."""
    return float(str(v))
