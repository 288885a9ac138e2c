"""Tables: named columns of numbers and categories."""

from __future__ import annotations

import json
import math
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
from msgspec.structs import astuple
from numpy.typing import NDArray

from core.errors import Invalid, Place
from core.kprior.model.spec import Column
from service.parsing import columns
from service.parsing.inputs.base import SCALED, Inputs, Matrix, first, place, shape_error, to_shortest

NAMED = 10
"""Values of a column that an answer names."""
WIDE = 100
"""Columns from which on a field is looked up by its hash: msgspec looks at one after the other."""


class TableInputs(Inputs):
    """Objects with a field for each column; null is missing. Categories are stored as their number."""

    largest = SCALED

    def __init__(self, described: list[Column]) -> None:
        self.names = [column["name"] for column in described]
        self.codes = [
            {value: float(code) for code, value in enumerate(column["values"])}
            if column["type"] == "category"
            else None
            for column in described
        ]
        self.width = len(described)
        number, category = float | bool | None, str | int | bool | None
        # msgspec has no fields with such names
        self.by_name = self.width > WIDE or any('"' in name or "\\" in name for name in self.names)
        if self.by_name:
            self.json_type = dict[str, str | int | float | bool | None]
            return
        # fields have names of our own: a column may be called anything
        fields = [(f"c{i}", number if codes is None else category) for i, codes in enumerate(self.codes)]
        rename = {f"c{i}": name for i, name in enumerate(self.names)}
        self.json_type = msgspec.defstruct("Row", fields, rename=rename, forbid_unknown_fields=True)

    @property
    def most_commas(self) -> int:
        return 2**62  # names and categories may have any; fields that no column has are refused at once

    def from_json(self, xs: list[Any], where: str) -> Matrix:
        made = np.empty((len(xs), self.width), np.float64)
        rows = (self.values_of(x, where, i) for i, x in enumerate(xs)) if self.by_name else map(astuple, xs)
        for j, values in enumerate(zip(*rows, strict=True)):
            codes = self.codes[j]
            if codes is not None:
                values = tuple(math.nan if v is None else codes.get(category_of(v), -1.0) for v in values)
                if -1.0 in values:
                    raise self.unknown_category(values.index(-1.0), j, where)
            elif any(isinstance(v, str) for v in values):
                i = next(i for i, v in enumerate(values) if isinstance(v, str))
                raise Invalid.at((*place(where, i), self.names[j]), "example_invalid", "expected a number")
            made[:, j] = [math.nan if v is None else v for v in values]
        return self.to_stored_or_missing(made, where)

    def values_of(self, row: dict[str, str | int | float | bool | None], where: str, i: int) -> list[Any]:
        """The values of a row in the order of the columns."""
        try:
            values = [row[name] for name in self.names]
        except KeyError as missing:
            message = f"Object missing required field `{missing.args[0]}`"
            raise Invalid.at(place(where, i), "example_invalid", message) from None
        if len(row) > self.width:
            strange = min(row.keys() - set(self.names))
            raise Invalid.at(place(where, i), "example_invalid", f"Object contains unknown field `{strange}`")
        return values

    def feature_columns(self, names: list[str]) -> dict[str, pa.DataType]:
        kinds = [pa.float64() if codes is None else pa.string() for codes in self.codes]
        return dict(zip(self.names, kinds, strict=True))

    def check_columns(self, names: list[str], where: str) -> None:
        given = set(names)
        for name in self.names:
            if name not in given:
                raise shape_error((where,), f"the column {name!r} is missing")

    def from_columns(self, table: pa.Table, where: str) -> Matrix:
        made = np.empty((table.num_rows, self.width), np.float64)
        places = {name: i for i, name in enumerate(table.column_names)}
        for j, name in enumerate(self.names):
            codes, column = self.codes[j], table.column(places[name])
            if codes is None:
                made[:, j] = columns.numbers(column, where, name, missing=True)
            else:
                made[:, j] = columns.codes(column, list(codes), where, name)
                if (made[:, j] < 0).any():
                    raise self.unknown_category(first(made[:, j] < 0), j, where)
        return self.to_stored_or_missing(made, where)

    def unknown_category(self, i: int, j: int, where: str) -> Exception:
        # the caller's own value is not repeated: it may be personal data
        values = [json.dumps(value, ensure_ascii=False) for value in self.codes[j] or ()]
        more = f" or {len(values) - NAMED} more" if len(values) > NAMED else ""
        message = f"is not among the values of this column: {', '.join(values[:NAMED])}{more}"
        return Invalid.at((*place(where, i), self.names[j]), "category_unknown", message)

    def to_stored_or_missing(self, made: Matrix, where: str) -> Matrix:
        missing = np.isnan(made)
        made[missing] = 0.0
        x = self.to_stored(made, where)
        x[missing] = math.nan
        return x

    def place_of(self, bad: NDArray[np.bool_], where: str) -> Place:
        row = first(bad)
        return (*place(where, row), self.names[int(bad[row].argmax())])

    def to_json(self, x: Matrix) -> Any:
        values = {}
        for name, codes, v in zip(self.names, self.codes, x, strict=True):
            values[name] = None if math.isnan(v) else to_shortest(v) if codes is None else list(codes)[int(v)]
        return values


def category_of(value: Any) -> Any:
    """True and false are texts among categories; to a dictionary they would be 1 and 0."""
    return str(value).lower() if isinstance(value, bool) else value
