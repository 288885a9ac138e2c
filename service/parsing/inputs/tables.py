"""Tables: named columns of numbers, booleans, dates and categories."""

import math
from collections.abc import Iterable, Sequence
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
from msgspec.structs import astuple
from numpy.typing import NDArray

from core.errors import Invalid, Location
from core.kprior.model.spec import Column
from service.parsing.inputs.base import MAX_SCALED, Inputs, Matrix, first, location_of, shape_error
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

    def to_json(self, x: Matrix) -> Any:
        return {
            column.name: None if math.isnan(v) else column.to_json(v) for column, v in zip(self.columns, x, strict=True)
        }

    def to_columns(self, x: Matrix) -> dict[str, pa.Array]:
        return {column.name: column.to_column(x[:, j]) for j, column in enumerate(self.columns)}
