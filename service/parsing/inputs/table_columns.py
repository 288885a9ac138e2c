"""The columns of a table, one class for each type: JSON values and Arrow columns -> numbers, and back.

NaN is a missing value. What cannot be read is refused with its row and column.
"""

from __future__ import annotations

import json
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from core.errors import Invalid
from core.kprior.model.categories import OTHER, UNSEEN, spell, spellings_of, unseen_code
from core.kprior.model.dates import (
    BOOLEANS,
    EXPECTED_BOOLEAN,
    EXPECTED_DATE,
    FIRST_DAY,
    LAST_DAY,
    days_of,
    format_days,
    truth_of,
)
from core.kprior.model.spec import CategoryColumn, Column
from service.parsing import columns
from service.parsing.inputs.base import first, location_of, to_shortest

MAX_NAMED_VALUES = 10
"""Values of a column that an error message lists."""
EXPECTED_CATEGORY = "expected text or a whole number"
INVALID_CODE = -2.0
"""No code of any category."""


MICROSECONDS_PER_DAY = 86_400_000_000
"""Of a day."""

JSON_SCALAR = str | int | float | bool | None


class TableColumn(ABC):
    """How one column is read."""

    json_type: Any
    """What msgspec decodes a value to."""
    csv_type = pa.string()
    """What a field of CSV is read as."""

    def __init__(self, name: str) -> None:
        self.name = name

    @abstractmethod
    def from_json(self, values: Sequence[Any], field: str) -> Sequence[float]:
        """Decoded values -> numbers."""

    @abstractmethod
    def from_column(self, column: pa.ChunkedArray, field: str) -> NDArray[np.float64]:
        """The same of an Arrow column."""

    @abstractmethod
    def to_json(self, v: np.float32) -> Any:
        """A stored number that is not missing, as it came."""

    def to_column(self, stored: NDArray[np.float32]) -> pa.Array:
        """Stored numbers as an Arrow column; null where they are missing."""
        return pa.array(stored, mask=np.isnan(stored))

    def read_each(
        self, read: Callable[[Any], float], values: Sequence[Any], field: str, code: str, message: str
    ) -> Sequence[float]:
        try:
            return [math.nan if v is None else read(v) for v in values]
        except ValueError:
            raise self.refuse(field, find_bad(read, values), code, message) from None

    def refuse(self, field: str, i: int, code: str, message: str) -> Invalid:
        return Invalid.at((*location_of(field, i), self.name), code, message)


class Number(TableColumn):
    """Numbers; true and false are 1 and 0."""

    json_type = float | bool | None
    csv_type = pa.float64()

    def from_json(self, values: Sequence[Any], field: str) -> Sequence[float]:
        if any(isinstance(v, str) for v in values):
            i = next(i for i, v in enumerate(values) if isinstance(v, str))
            raise self.refuse(field, i, "example_invalid", "expected a number")
        return [math.nan if v is None else v for v in values]

    def from_column(self, column: pa.ChunkedArray, field: str) -> NDArray[np.float64]:
        return columns.numbers(column, field, self.name, missing=True)

    def to_json(self, v: np.float32) -> Any:
        return to_shortest(v)


class Category(TableColumn):
    """Texts and whole numbers, by their code. True and false are texts. An empty text is a missing value, as in CSV."""

    json_type = JSON_SCALAR

    def __init__(self, described: CategoryColumn) -> None:
        super().__init__(described["name"])
        self.values = described["values"]
        self.codes = {"": math.nan, **spellings_of(self.values)}
        unseen = unseen_code(described)
        self.unseen = INVALID_CODE if unseen is None else unseen
        self.other = unseen

    def from_json(self, values: Sequence[Any], field: str) -> Sequence[float]:
        get, unseen = self.codes.get, self.unseen
        try:
            made = [math.nan if v is None else get(v if type(v) is str else spell(v), unseen) for v in values]
        except ValueError:  # a fraction, or a number of thousands of digits
            raise self.refuse(field, find_bad(spell, values), "example_invalid", EXPECTED_CATEGORY) from None
        if INVALID_CODE in made:
            raise self.refuse_value(made.index(INVALID_CODE), field)
        return made

    def from_column(self, column: pa.ChunkedArray, field: str) -> NDArray[np.float64]:
        made = columns.find(column, self.codes, self.unseen, field, self.name)
        if (bad := made == INVALID_CODE).any():
            raise self.refuse_value(first(bad), field)
        return made

    def refuse_value(self, i: int, field: str) -> Invalid:
        # the caller's own value is not repeated: it may be personal data
        values = [json.dumps(value, ensure_ascii=False) for value in self.values]
        more = f" or {len(values) - MAX_NAMED_VALUES} more" if len(values) > MAX_NAMED_VALUES else ""
        message = f"is not among the values of this column: {', '.join(values[:MAX_NAMED_VALUES])}{more}"
        return self.refuse(field, i, "category_unknown", message)

    def to_json(self, v: np.float32) -> Any:
        # sent again, it is taken as other again: a value that is called so is what unseen ones are taken as
        return self.values[int(v)] if v >= 0 else OTHER

    def to_column(self, stored: NDArray[np.float32]) -> pa.Array:
        # as text, since numbers and `other` can be in one column
        texts = [*map(str, self.values), *([OTHER] if self.other == UNSEEN else [])]
        missing = np.isnan(stored)
        places = np.where(missing, 0, np.where(stored < 0, len(self.values), stored)).astype(np.int32)
        return pa.DictionaryArray.from_arrays(pa.array(places, mask=missing), pa.array(texts, pa.string()))


class Boolean(TableColumn):
    """True and false, also as 1 and 0."""

    json_type = JSON_SCALAR

    def from_json(self, values: Sequence[Any], field: str) -> Sequence[float]:
        return self.read_each(truth_of, values, field, "boolean_invalid", EXPECTED_BOOLEAN)

    def from_column(self, column: pa.ChunkedArray, field: str) -> NDArray[np.float64]:
        if columns.is_number(column.type):
            made = columns.numbers(column, field, self.name, missing=True)
            bad = ~(np.isnan(made) | (made == 0) | (made == 1))
        else:
            made = columns.find(column, BOOLEANS, INVALID_CODE, field, self.name)
            bad = made == INVALID_CODE
        if bad.any():
            raise self.refuse(field, first(bad), "boolean_invalid", EXPECTED_BOOLEAN)
        return made

    def to_json(self, v: np.float32) -> Any:
        return bool(v)

    def to_column(self, stored: NDArray[np.float32]) -> pa.Array:
        return pa.array(stored == 1, mask=np.isnan(stored))


class Date(TableColumn):
    """Dates and moments, as days since 1970."""

    json_type = JSON_SCALAR

    def from_json(self, values: Sequence[Any], field: str) -> Sequence[float]:
        return self.read_each(days_of, values, field, "date_invalid", EXPECTED_DATE)

    def from_column(self, column: pa.ChunkedArray, field: str) -> NDArray[np.float64]:
        kind = column.type.value_type if pa.types.is_dictionary(column.type) else column.type
        if columns.is_date(kind):
            made = columns.days(column, field, self.name)
            bad = (made < FIRST_DAY) | (made >= LAST_DAY + 0.25)
            if bad.any():
                raise self.refuse(field, first(bad), "date_invalid", EXPECTED_DATE)
            return np.where(made > LAST_DAY, LAST_DAY, made)
        if columns.is_number(kind):
            raise self.refuse(field, 0, "date_invalid", EXPECTED_DATE)
        return np.array(self.from_json(columns.texts(column, field, self.name), field), np.float64)

    def to_json(self, v: np.float32) -> Any:
        return format_days(float(v), lambda days: np.float32(days) == v)

    def to_column(self, stored: NDArray[np.float32]) -> pa.Array:
        missing = np.isnan(stored)
        days, places = np.unique(np.where(missing, np.float32(0), stored), return_inverse=True)
        # the round moments that the texts have
        moments = np.array([round(days_of(self.to_json(day)) * MICROSECONDS_PER_DAY) for day in days], np.int64)
        return pa.array(moments[places], pa.timestamp("us", "UTC"), mask=missing)


def find_bad(read: Callable[[Any], object], values: Sequence[Any]) -> int:
    """The index of the first value that cannot be read."""
    for i, value in enumerate(values):
        try:
            _ = value is None or read(value)
        except ValueError:
            return i
    raise AssertionError("all of them can be read")


def column_of(described: Column) -> TableColumn:
    if described["type"] == "category":
        return Category(described)
    kinds: dict[str, Callable[[str], TableColumn]] = {"number": Number, "boolean": Boolean, "date": Date}
    return kinds[described["type"]](described["name"])
