"""The columns of a table, one class per type. Each converts JSON values and Arrow columns to numbers, and back.

NaN is a missing value. Errors have the row and the column.
"""

import json
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
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

MAX_VALUE_LENGTH = 200
"""Maximum number of characters of a category value."""
MAX_NAMED_VALUES = 10
"""Number of permitted values that an error message lists."""
EXPECTED_CATEGORY = "expected text or a whole number"
INVALID_CODE = -2.0
"""A number that is not the code of any category."""


MICROSECONDS_PER_DAY = 86_400_000_000

JSON_SCALAR = str | int | float | bool | None


class TableColumn(ABC):
    """Reads and writes one column."""

    json_type: Any
    """Type that msgspec decodes a value to."""
    csv_type = pa.string()
    """Type to read the column as from CSV."""

    def __init__(self, name: str) -> None:
        self.name = name

    @abstractmethod
    def from_json(self, values: Sequence[Any], field: str) -> Sequence[float]:
        """Decoded values -> numbers."""

    @abstractmethod
    def from_column(self, column: pa.ChunkedArray, field: str) -> NDArray[np.float64]:
        """An Arrow column -> numbers."""

    @abstractmethod
    def to_json(self, v: np.float32) -> Any:
        """A stored number, not missing, as the caller sent it."""

    def to_column(self, stored: NDArray[np.float32], unseen: Mapping[int, str] | None = None) -> pa.Array:
        """Stored numbers as an Arrow column, with null for missing values; `unseen` are texts by row."""
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
    """Texts and whole numbers, stored as codes. True and false are texts. An empty text is missing, as in CSV."""

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
            numbers = [math.nan if v is None else get(v if type(v) is str else spell(v), unseen) for v in values]
        except ValueError:  # a fraction, or a number with thousands of digits
            raise self.refuse(field, find_bad(spell, values), "example_invalid", EXPECTED_CATEGORY) from None
        if INVALID_CODE in numbers:
            raise self.refuse_value(numbers.index(INVALID_CODE), field)
        return numbers

    def from_column(self, column: pa.ChunkedArray, field: str) -> NDArray[np.float64]:
        numbers = columns.find(column, self.codes, self.unseen, field, self.name)
        if (bad := numbers == INVALID_CODE).any():
            raise self.refuse_value(first(bad), field)
        return numbers

    def refuse_value(self, i: int, field: str) -> Invalid:
        # the message does not repeat the value, which may be personal data
        values = [json.dumps(value, ensure_ascii=False) for value in self.values]
        more = f" or {len(values) - MAX_NAMED_VALUES} more" if len(values) > MAX_NAMED_VALUES else ""
        message = f"must be one of the values of this column: {', '.join(values[:MAX_NAMED_VALUES])}{more}"
        return self.refuse(field, i, "category_unknown", message)

    def to_json(self, v: np.float32) -> Any:
        # sent again, `other` is mapped to the same code
        return self.values[int(v)] if v >= 0 else OTHER

    def to_column(self, stored: NDArray[np.float32], unseen: Mapping[int, str] | None = None) -> pa.Array:
        # as text, because a column can contain both numbers and unseen texts
        texts = [*map(str, self.values), *([OTHER] if self.other == UNSEEN else [])]
        missing = np.isnan(stored)
        places = np.where(missing, 0, np.where(stored < 0, len(self.values), stored)).astype(np.int32)
        if unseen:
            new = {text: len(texts) + i for i, text in enumerate(dict.fromkeys(unseen.values()))}
            texts += new
            places[list(unseen)] = [new[text] for text in unseen.values()]
        return pa.DictionaryArray.from_arrays(pa.array(places, mask=missing), pa.array(texts, pa.string()))

    def keeps(self, text: str) -> bool:
        """Whether the text of an unseen value is stored: only if it could be added to the values."""
        return text != OTHER and len(text) <= MAX_VALUE_LENGTH and text.isprintable()


class Boolean(TableColumn):
    """True and false, also as 1 and 0."""

    json_type = JSON_SCALAR

    def from_json(self, values: Sequence[Any], field: str) -> Sequence[float]:
        return self.read_each(truth_of, values, field, "boolean_invalid", EXPECTED_BOOLEAN)

    def from_column(self, column: pa.ChunkedArray, field: str) -> NDArray[np.float64]:
        if columns.is_number(column.type):
            numbers = columns.numbers(column, field, self.name, missing=True)
            bad = ~(np.isnan(numbers) | (numbers == 0) | (numbers == 1))
        else:
            numbers = columns.find(column, BOOLEANS, INVALID_CODE, field, self.name)
            bad = numbers == INVALID_CODE
        if bad.any():
            raise self.refuse(field, first(bad), "boolean_invalid", EXPECTED_BOOLEAN)
        return numbers

    def to_json(self, v: np.float32) -> Any:
        return bool(v)

    def to_column(self, stored: NDArray[np.float32], unseen: Mapping[int, str] | None = None) -> pa.Array:
        return pa.array(stored == 1, mask=np.isnan(stored))


class Date(TableColumn):
    """Dates and times, as days since 1970."""

    json_type = JSON_SCALAR

    def from_json(self, values: Sequence[Any], field: str) -> Sequence[float]:
        return self.read_each(days_of, values, field, "date_invalid", EXPECTED_DATE)

    def from_column(self, column: pa.ChunkedArray, field: str) -> NDArray[np.float64]:
        kind = column.type.value_type if pa.types.is_dictionary(column.type) else column.type
        if columns.is_date(kind):
            numbers = columns.days(column, field, self.name)
            bad = (numbers < FIRST_DAY) | (numbers >= LAST_DAY + 0.25)
            if bad.any():
                raise self.refuse(field, first(bad), "date_invalid", EXPECTED_DATE)
            return np.where(numbers > LAST_DAY, LAST_DAY, numbers)
        if columns.is_number(kind):
            raise self.refuse(field, 0, "date_invalid", EXPECTED_DATE)
        return np.array(self.from_json(columns.texts(column, field, self.name), field), np.float64)

    def to_json(self, v: np.float32) -> Any:
        return format_days(float(v), lambda days: np.float32(days) == v)

    def to_column(self, stored: NDArray[np.float32], unseen: Mapping[int, str] | None = None) -> pa.Array:
        missing = np.isnan(stored)
        days, places = np.unique(np.where(missing, np.float32(0), stored), return_inverse=True)
        # the rounded times that `to_json` returns
        moments = np.array([round(days_of(self.to_json(day)) * MICROSECONDS_PER_DAY) for day in days], np.int64)
        return pa.array(moments[places], pa.timestamp("us", "UTC"), mask=missing)


def find_bad(read: Callable[[Any], object], values: Sequence[Any]) -> int:
    """Index of the first invalid value."""
    for i, value in enumerate(values):
        try:
            _ = value is None or read(value)
        except ValueError:
            return i
    raise AssertionError("all values are valid")


def column_of(described: Column) -> TableColumn:
    if described["type"] == "category":
        return Category(described)
    kinds: dict[str, Callable[[str], TableColumn]] = {"number": Number, "boolean": Boolean, "date": Date}
    return kinds[described["type"]](described["name"])
