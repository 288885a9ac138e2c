"""Tables: named columns of numbers, booleans, dates and categories."""

import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
from msgspec.structs import astuple
from numpy.typing import NDArray

from core.errors import Invalid, Location
from core.kprior.model.categories import spell
from core.kprior.model.spec import Column
from core.ledger.unseen_categories import decode, encode
from service.parsing.columns import texts
from service.parsing.inputs.base import MAX_SCALED, Inputs, Matrix, Unseen, first, location_of, shape_error
from service.parsing.inputs.table_columns import Category, column_of

MIN_COLUMNS_FOR_LOOKUP = 100
"""Above this number of columns, rows are decoded to dictionaries: msgspec structs search field names linearly."""


class TableInputs(Inputs):
    """Objects with a field per column; null is a missing value. Categories are stored as codes."""

    largest = MAX_SCALED

    def __init__(self, described: list[Column]) -> None:
        self.columns = [column_of(column) for column in described]
        self.names = [column.name for column in self.columns]
        self.width = len(described)
        others = {j: c.other for j, c in enumerate(self.columns) if isinstance(c, Category) and c.other is not None}
        self.others = list(others), np.array(list(others.values()), np.float32)
        # msgspec does not support these characters in field names
        self.by_name = self.width > MIN_COLUMNS_FOR_LOOKUP or any('"' in name or "\\" in name for name in self.names)
        if self.by_name:
            self.json_type = dict[str, str | int | float | bool | None]
            return
        # fields have generated names, because a column may have any name
        fields = [(f"c{i}", column.json_type) for i, column in enumerate(self.columns)]
        rename = {f"c{i}": name for i, name in enumerate(self.names)}
        self.json_type = msgspec.defstruct("Row", fields, rename=rename, forbid_unknown_fields=True)

    @property
    def max_commas(self) -> int:
        return 2**62  # names and categories may contain commas; unknown fields are rejected at once

    def from_json(self, xs: list[Any], field: str) -> Matrix:
        rows = (self.values_of(x, field, i) for i, x in enumerate(xs)) if self.by_name else map(astuple, xs)
        return self.from_values(zip(*rows, strict=True), len(xs), field)

    def from_values(self, columns: Iterable[Sequence[Any]], count: int, field: str) -> Matrix:
        """The decoded values of `count` rows, column by column -> (n, width)."""
        matrix = np.empty((count, self.width), np.float64)
        for j, values in enumerate(columns):
            matrix[:, j] = self.columns[j].from_json(values, field)
        return self.to_stored_or_missing(matrix, field)

    def values_of(self, row: dict[str, str | int | float | bool | None], field: str, i: int) -> list[Any]:
        """The values of a row in the order of the columns."""
        try:
            values = [row[name] for name in self.names]
        except KeyError as missing:
            message = f"`{missing.args[0]}` is missing"
            raise Invalid.at(location_of(field, i), "example_invalid", message) from None
        if len(row) > self.width:
            unknown = min(row.keys() - set(self.names))
            raise Invalid.at(location_of(field, i), "example_invalid", f"unknown field `{unknown}`")
        return values

    def feature_columns(self, names: list[str]) -> dict[str, pa.DataType]:
        return {column.name: column.csv_type for column in self.columns}

    def check_columns(self, names: list[str], field: str) -> None:
        given = set(names)
        for name in self.names:
            if name not in given:
                raise shape_error((field,), f"the column {name!r} is missing")

    def from_columns(self, table: pa.Table, field: str) -> Matrix:
        matrix = np.empty((table.num_rows, self.width), np.float64)
        places = {name: i for i, name in enumerate(table.column_names)}
        for j, column in enumerate(self.columns):
            matrix[:, j] = column.from_column(table.column(places[column.name]), field)
        return self.to_stored_or_missing(matrix, field)

    def to_stored_or_missing(self, matrix: Matrix, field: str) -> Matrix:
        missing = np.isnan(matrix)
        matrix[missing] = 0.0
        x = self.to_stored(matrix, field)
        x[missing] = math.nan
        return x

    def locate(self, bad: NDArray[np.bool_], field: str) -> Location:
        row = first(bad)
        return (*location_of(field, row), self.names[int(bad[row].argmax())])

    def count_other(self, x: Matrix) -> int:
        places, codes = self.others
        return int((x[:, places] == codes).sum()) if places else 0

    def unseen_in_json(self, xs: Callable[[], list[Any]], x: Matrix) -> Unseen | None:
        rows = xs() if self.count_other(x) else []

        def texts_in(j: int, which: list[int]) -> list[str]:
            name, field = self.names[j], f"c{j}"
            values = (rows[i][name] if self.by_name else getattr(rows[i], field) for i in which)
            # as Arrow writes true and false
            return [str(value).lower() if isinstance(value, bool) else spell(value) for value in values]

        return self.gather_unseen(x, texts_in) if rows else None

    def unseen_in_columns(self, table: pa.Table, x: Matrix, field: str) -> Unseen | None:
        def texts_in(j: int, which: list[int]) -> list[str | None]:
            name = self.names[j]
            return texts(table.column(name).take(which), field, name)

        return self.gather_unseen(x, texts_in) if self.count_other(x) else None

    def gather_unseen(self, x: Matrix, texts_in: Callable[[int, list[int]], Sequence[str | None]]) -> Unseen | None:
        """The texts of unseen values by row; `texts_in` returns those of a column in some rows."""
        found: dict[int, dict[int, str]] = {}
        for j, code in zip(*self.others, strict=True):
            column, which = self.columns[j], np.flatnonzero(x[:, j] == code).tolist()
            for i, text in zip(which, texts_in(j, which) if which else (), strict=True):
                if text is not None and isinstance(column, Category) and column.keeps(text):
                    found.setdefault(i, {})[j] = text
        return [encode(found[i]) if i in found else None for i in range(len(x))] if found else None

    def is_unseen(self, j: int, v: np.float32) -> bool:
        """Whether a stored number is the code of unseen values of a category."""
        column = self.columns[j]
        return isinstance(column, Category) and column.other is not None and v == column.other

    def to_json(self, x: Matrix, unseen: str | None = None) -> Any:
        row = {
            column.name: None if math.isnan(v) else column.to_json(v) for column, v in zip(self.columns, x, strict=True)
        }
        return row | {self.names[j]: text for j, text in decode(unseen).items() if self.is_unseen(j, x[j])}

    def to_columns(self, x: Matrix, unseen: Unseen | None = None) -> dict[str, pa.Array]:
        texts: dict[int, dict[int, str]] = {}
        for i, stored in enumerate(unseen or ()):
            for j, text in decode(stored).items():
                if self.is_unseen(j, x[i, j]):
                    texts.setdefault(j, {})[i] = text
        return {column.name: column.to_column(x[:, j], texts.get(j)) for j, column in enumerate(self.columns)}
