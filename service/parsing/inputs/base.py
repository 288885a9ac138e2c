"""Parsing and limits that all kinds of inputs share."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import msgspec
import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from core.errors import Invalid, Location
from service.parsing import columns

Matrix = NDArray[Any]
Unseen = Sequence[str | None]
"""Texts of each row's unseen category values, as they are stored (`core/ledger/unseen_categories.py`)."""
T = TypeVar("T")
MAX_FLOAT32 = float(np.finfo(np.float32).max)
MAX_UNSCALED, MAX_SCALED = 2.0**26, 2.0**63
"""Largest values that the solvers can handle. Features of vectors are not scaled, and their squares are summed in 64
bits: next to a square of 2**26, a 1 still has one bit (measured: above it there is no bound). Columns of tables are
scaled, so the limit is the largest number whose square fits into 32 bits, which includes all 64-bit integers."""
EXTRA_COMMAS = 500
"""Commas in the id, the subject and between the fields of an example."""


class Inputs(ABC):
    """Reads and writes the inputs of one model."""

    json_type: Any
    """Type that msgspec decodes one input to."""
    width: int
    """Number of values in one input."""
    dtype: str = "float32"
    reads_raw = False
    """Whether inputs can be parsed from JSON text without a Python object for each number."""
    takes_files = False
    """Whether a column of bytes may contain an image file for each row."""
    largest = MAX_UNSCALED
    """Largest number in an example."""

    @property
    def max_commas(self) -> int:
        """Maximum number of commas in the JSON of one example."""
        return self.width + EXTRA_COMMAS

    def from_raw(self, texts: list[Any], field: str, bare: bool = False) -> Matrix | None:
        """JSON texts of inputs (`bare`: without brackets) -> (n, width); None if anything is invalid."""
        return None

    def read(
        self, decode: Callable[[Any], list[T]], of: Callable[[T], Any], field: str, few: bool = False
    ) -> tuple[list[T], Matrix]:
        """Decode objects that contain inputs. Returns the objects and the inputs.

        `decode` takes the type to decode an input to; `of` returns the input of an object. With `few`, the numbers are
        decoded one by one, because preparing for bulk parsing would take longer.
        """
        if self.reads_raw and not few:
            objects = decode(msgspec.Raw)
            x = self.from_raw([of(one) for one in objects], field)
            if x is not None:
                return objects, x
        # slower, but raises an error with the location of the invalid value
        objects = decode(self.json_type)
        return objects, self.from_json([of(one) for one in objects], field)

    @abstractmethod
    def from_json(self, xs: list[Any], field: str) -> Matrix:
        """Decoded inputs -> (n, width)."""

    @abstractmethod
    def feature_columns(self, names: list[str]) -> dict[str, pa.DataType]:
        """Names of the feature columns, with the type to read them as from CSV."""

    def check_columns(self, names: list[str], field: str) -> None:
        """Raise Invalid unless there is a column for each feature, or `x`."""
        features = self.feature_columns(names)
        if "x" in names:
            if features:
                raise Invalid.at((field,), "example_invalid", "give either `x` or one column per feature, not both")
        elif len(features) != self.width:
            raise shape_error((field,), f"expected {self.width} feature columns, got {len(features)}")

    def from_columns(self, table: pa.Table, field: str) -> Matrix:
        """Columns (`x` as a list, or one per feature) -> (n, width)."""
        if "x" in table.column_names:
            return self.to_stored(columns.lists(table.column("x"), self.width, field), field)
        matrix = np.empty((table.num_rows, self.width), self.dtype)
        for i, name in enumerate(self.feature_columns(table.column_names)):
            matrix[:, i] = self.to_stored(columns.numbers(table.column(name), field, name), field, name)
        return matrix

    def to_stored(self, x: Matrix, field: str, name: str | None = None) -> Matrix:
        """Convert to the stored type. Raises Invalid if a number is not finite, or in an example too large."""

        def at(bad: NDArray[np.bool_]) -> Location:
            return self.locate(bad, field) if name is None else (field, first(bad), name)

        if self.dtype == "uint8":
            bad = (x < 0) | (x > 255) | (x != np.floor(x))
            if bad.any():
                raise Invalid.at(at(bad), "pixel_invalid", "pixels must be whole numbers from 0 to 255")
            return np.ascontiguousarray(x, np.uint8)
        largest = self.largest if field == "examples" else MAX_FLOAT32
        # both comparisons are false for NaN
        if x.size and not (x.max() <= largest and x.min() >= -largest):
            if (bad := ~np.isfinite(x)).any():
                raise Invalid.at(at(bad), "number_not_finite", "must be finite")
            hint = "" if self.largest == MAX_SCALED else "; scale it, or use a table, whose columns Amend scales"
            message = f"exceeds the limit of {largest:.15g}{hint}"
            raise Invalid.at(at(np.abs(x) > largest), "number_too_large", message)
        # negative zero becomes zero, so that equal content has equal bytes
        matrix: Matrix = np.array(x, np.float32, order="C")
        matrix += np.float32(0)
        return matrix

    def locate(self, bad: NDArray[np.bool_], field: str) -> Location:
        """Location of the first invalid number."""
        return location_of(field, first(bad))

    def count_other(self, x: Matrix) -> int:
        """Number of values in stored inputs that were mapped to `other`."""
        return 0

    def unseen_in_json(self, xs: Callable[[], list[Any]], x: Matrix) -> Unseen | None:
        """The texts of unseen category values in decoded inputs; `x` are the same inputs as stored."""
        return None

    def unseen_in_columns(self, table: pa.Table, x: Matrix, field: str) -> Unseen | None:
        """The texts of unseen category values in a table; `x` are the same inputs as stored."""
        return None

    def from_stored(self, x: bytes) -> Matrix:
        """One stored input."""
        return np.array([x], object) if self.dtype == "object" else np.frombuffer(x, self.dtype)

    @abstractmethod
    def to_json(self, x: Matrix, unseen: str | None = None) -> Any:
        """One stored input, with the texts of its unseen category values, as the caller sent it."""

    def to_columns(self, x: Matrix, unseen: Unseen | None = None) -> dict[str, pa.Array]:
        """Stored inputs (n, width) as columns that `from_columns` can read."""
        flat = pa.array(np.ascontiguousarray(x).reshape(-1))
        return {"x": pa.FixedSizeListArray.from_arrays(flat, self.width)}


def location_of(field: str, i: int) -> Location:
    """Location of the i-th input: the `x` of an example, or the input itself."""
    return (field, i, "x") if field == "examples" else (field, i)


def first(bad: NDArray[np.bool_]) -> int:
    """Index of the first row with an invalid value."""
    return int(bad.reshape(len(bad), -1).any(1).argmax())


def shape_of(x: Any) -> tuple[int, ...] | None:
    """The shape of nested lists; None if they are ragged."""
    try:
        return np.array(x, np.float64).shape
    except ValueError:
        return None


def shape_error(location: Location, message: str) -> Exception:
    return Invalid.at(location, "example_shape_mismatch", message)


def to_shortest(v: np.float32) -> float:
    """The shortest decimal for a 32-bit number: 0.1, not 0.10000000149011612."""
    return float(str(v))
