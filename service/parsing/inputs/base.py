"""How inputs of any kind are read, and what they may be."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any, TypeVar

import msgspec
import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from core.errors import Invalid, Location
from service.parsing import columns

Matrix = NDArray[Any]
T = TypeVar("T")
MAX_FLOAT32 = float(np.finfo(np.float32).max)
MAX_UNSCALED, MAX_SCALED = 2.0**26, 2.0**63
"""What the solver can carry of an example. Features enter as they are, and their squares into sums of 64 bits: that of
2**26 still leaves a bit of another's 1 (measured: beyond it there is no bound). A table's columns are scaled: what
32 bits can hold the square of will do, which is any whole number of 64 bits."""
EXTRA_COMMAS = 500
"""In the id, the subject and between the fields of an example."""


class Inputs(ABC):
    """How one model's inputs are read."""

    json_type: Any
    """What msgspec decodes one input to."""
    width: int
    """Numbers of one input."""
    dtype: str = "float32"
    reads_raw = False
    """Whether inputs can be read from their JSON text, without a Python object for each number."""
    largest = MAX_UNSCALED
    """Of the numbers of an example."""

    @property
    def max_commas(self) -> int:
        """In the JSON of one example."""
        return self.width + EXTRA_COMMAS

    def from_raw(self, texts: list[Any], field: str, bare: bool = False) -> Matrix | None:
        """JSON texts of inputs (bare: without brackets) -> (n, width); None if anything is not as it should be."""
        return None

    def read(
        self, decode: Callable[[Any], list[T]], of: Callable[[T], Any], field: str, few: bool = False
    ) -> tuple[list[T], Matrix]:
        """Objects that hold inputs, and the inputs. `decode` takes what an input shall be decoded to.

        A `few` inputs are read number by number: to prepare for many would take longer.
        """
        if self.reads_raw and not few:
            found = decode(msgspec.Raw)
            x = self.from_raw([of(one) for one in found], field)
            if x is not None:
                return found, x
        # with care: this tells what is wrong, and where
        found = decode(self.json_type)
        return found, self.from_json([of(one) for one in found], field)

    @abstractmethod
    def from_json(self, xs: list[Any], field: str) -> Matrix:
        """Decoded inputs -> (n, width)."""

    @abstractmethod
    def feature_columns(self, names: list[str]) -> dict[str, pa.DataType]:
        """The columns that hold features, with the type to read them as from CSV."""

    def check_columns(self, names: list[str], field: str) -> None:
        """Whether there is a column for each feature, or `x`."""
        features = self.feature_columns(names)
        if "x" in names:
            if features:
                raise Invalid.at((field,), "example_invalid", "give x or a column for each feature, not both")
        elif len(features) != self.width:
            raise shape_error((field,), f"{len(features)} feature columns; this model has {self.width}")

    def from_columns(self, table: pa.Table, field: str) -> Matrix:
        """Columns (`x` as a list, or one for each feature) -> (n, width)."""
        if "x" in table.column_names:
            return self.to_stored(columns.lists(table.column("x"), self.width, field), field)
        made = np.empty((table.num_rows, self.width), self.dtype)
        for i, name in enumerate(self.feature_columns(table.column_names)):
            made[:, i] = self.to_stored(columns.numbers(table.column(name), field, name), field, name)
        return made

    def to_stored(self, x: Matrix, field: str, name: str | None = None) -> Matrix:
        """The stored type, if all numbers are finite in it, and those of examples (`field`) no burden to a solver."""

        def at(bad: NDArray[np.bool_]) -> Location:
            return self.locate(bad, field) if name is None else (field, first(bad), name)

        if self.dtype == "uint8":
            bad = (x < 0) | (x > 255) | (x != np.floor(x))
            if bad.any():
                raise Invalid.at(at(bad), "pixel_invalid", "pixels are whole numbers from 0 to 255")
            return np.ascontiguousarray(x, np.uint8)
        largest = self.largest if field == "examples" else MAX_FLOAT32
        # of NaN neither is true
        if x.size and not (x.max() <= largest and x.min() >= -largest):
            if (bad := ~np.isfinite(x)).any():
                raise Invalid.at(at(bad), "number_not_finite", "a number is not finite")
            hint = (
                "" if self.largest == MAX_SCALED else "; scale it, or make the input a table, which is scaled by itself"
            )
            message = f"a number is beyond {largest:.15g}, more than a model can carry{hint}"
            raise Invalid.at(at(np.abs(x) > largest), "number_too_large", message)
        # a negative zero becomes the zero that it equals: the same content is the same bytes
        made: Matrix = np.array(x, np.float32, order="C")
        made += np.float32(0)
        return made

    def locate(self, bad: NDArray[np.bool_], field: str) -> Location:
        """Where the first bad number is."""
        return location_of(field, first(bad))

    def count_other(self, x: Matrix) -> int:
        """How many values of stored inputs were taken as `other`."""
        return 0

    @abstractmethod
    def to_json(self, x: Matrix) -> Any:
        """One stored input as it came."""

    def to_columns(self, x: Matrix) -> dict[str, pa.Array]:
        """Stored inputs (n, width) as columns, from which they can be read again."""
        flat = pa.array(np.ascontiguousarray(x).reshape(-1))
        return {"x": pa.FixedSizeListArray.from_arrays(flat, self.width)}


def location_of(field: str, i: int) -> Location:
    """Where the i-th input stands: in the `x` of an example, or by itself."""
    return (field, i, "x") if field == "examples" else (field, i)


def first(bad: NDArray[np.bool_]) -> int:
    """The index of the first row with a bad value."""
    return int(bad.reshape(len(bad), -1).any(1).argmax())


def shape_of(x: Any) -> tuple[int, ...] | None:
    """The shape of nested lists; None if ragged."""
    try:
        return np.array(x, np.float64).shape
    except ValueError:
        return None


def shape_error(location: Location, message: str) -> Exception:
    return Invalid.at(location, "example_shape_mismatch", message)


def to_shortest(v: np.float32) -> float:
    """The shortest decimal that means the same 32-bit number: 0.1, not 0.10000000149011612."""
    return float(str(v))
