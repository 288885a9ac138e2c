"""Converts targets between the values that callers send and the numbers that the ledger stores."""

from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from core.errors import Invalid
from core.kprior.model.categories import spellings_of
from core.kprior.model.spec import Target, values_of
from service.parsing import columns
from service.parsing.json_items import relocate

BINARY: dict[Any, float] = {0: 0.0, 1: 1.0}
"""True and 1.0 equal 1 as keys of a dictionary."""
MAX_VALUES = {"number": 2.0**49, "count": 1e12}
"""Largest values that the solvers can handle. Networks sum squares in 32 bits, which has room for 2**30 squares of
2**98. The curvature of a count is the count: above 1e12, those of other examples are lost in 64 bits."""


class Targets:
    """Reads and writes the targets of one model."""

    def __init__(self, target: Target) -> None:
        self.target = target
        self.kind = target["kind"]
        self.values = values_of(target)
        self.codes = {v: float(i) for i, v in enumerate(self.values)} if self.kind == "classes" else BINARY

    def from_json(self, ys: list[Any], field: str, missing: bool = False) -> NDArray[np.float64]:
        """Decoded labels -> (n,). With `missing`, null becomes NaN; otherwise it is an error."""
        if None not in ys:
            return self._from_json(ys, field)
        if not missing:
            raise self.missing_label(ys.index(None), field)
        given = [i for i, y in enumerate(ys) if y is not None]
        labels = np.full(len(ys), np.nan)
        with relocate(field, given):
            labels[given] = self._from_json([ys[i] for i in given], field)
        return labels

    def _from_json(self, ys: list[Any], field: str) -> NDArray[np.float64]:
        if self.kind in ("binary", "classes"):
            codes = self.codes
            if self.kind == "classes" and bool in set(map(type, ys)):
                ys = [str(y).lower() if isinstance(y, bool) else y for y in ys]
            try:
                return np.array([codes[y] for y in ys], np.float64)
            except KeyError:
                raise self.unknown_label(next(i for i, y in enumerate(ys) if y not in codes), field) from None
        for i, y in enumerate(ys):
            if isinstance(y, str):
                raise Invalid.at((field, i, "y"), "example_invalid", "expected a number")
        try:
            labels = np.array(ys, np.float64)
        except OverflowError:
            labels = np.array([float(y) if abs(y) < 2**1000 else 2.0**1000 for y in ys])
        return self.check_range(labels, field)

    def from_column(self, column: pa.ChunkedArray, field: str, missing: bool = False) -> NDArray[np.float64]:
        """A column of labels -> (n,). With `missing`, null becomes NaN; otherwise it is an error."""
        if not column.null_count:
            return self._from_column(column, field)
        present = column.is_valid().to_numpy(zero_copy_only=False)
        if not missing:
            raise self.missing_label(int(present.argmin()), field)
        labels = np.full(len(column), np.nan)
        with relocate(field, np.flatnonzero(present).tolist()):
            labels[present] = self._from_column(column.drop_null(), field)
        return labels

    def _from_column(self, column: pa.ChunkedArray, field: str) -> NDArray[np.float64]:
        numeric = columns.is_number(column.type)
        if self.kind == "binary" and numeric:
            labels = columns.numbers(column, field, "y")
            bad = (labels != 0) & (labels != 1)
        elif self.kind in ("binary", "classes"):
            codes = spellings_of([0, 1, *columns.BOOLEAN_TEXTS] if self.kind == "binary" else self.values)
            labels = columns.find(column, codes, -1.0, field, "y")
            bad = ~(labels >= 0)
            labels = labels % 2 if self.kind == "binary" else labels
        else:
            return self.check_range(self.parse_numbers(column, field), field)
        if bad.any():
            raise self.unknown_label(int(bad.argmax()), field)
        return labels

    def parse_numbers(self, column: pa.ChunkedArray, field: str) -> NDArray[np.float64]:
        """Numbers, also from CSV text."""
        if pa.types.is_string(column.type):
            texts = columns.texts(column, field, "y")
            labels = np.empty(len(texts))
            for i, text in enumerate(texts):
                try:
                    labels[i] = float(columns.BOOLEAN_TEXTS.get(text.lower(), text) if text else "")
                except ValueError:
                    raise Invalid.at((field, i, "y"), "example_invalid", "expected a number") from None
            return labels
        return columns.numbers(column, field, "y")

    def check_range(self, y: NDArray[np.float64], field: str) -> NDArray[np.float64]:
        bad = ~np.isfinite(y)
        if bad.any():
            raise Invalid.at((field, int(bad.argmax()), "y"), "number_not_finite", "must be finite")
        bad = np.abs(y) > MAX_VALUES[self.kind]
        if bad.any():
            message = f"exceeds the limit of {MAX_VALUES[self.kind]:.15g}; use larger units"
            raise Invalid.at((field, int(bad.argmax()), "y"), "number_too_large", message)
        if self.kind == "count":
            bad = (y < 0) | (y != np.floor(y))
            if bad.any():
                raise Invalid.at((field, int(bad.argmax()), "y"), "label_invalid", "a count must be 0, 1, 2, ...")
        return y

    def missing_label(self, i: int, field: str) -> Exception:
        return Invalid.at((field, i, "y"), "label_missing", "is missing")

    def unknown_label(self, i: int, field: str) -> Exception:
        expected = "0 or 1" if self.kind == "binary" else "one of the target's values"
        return Invalid.at((field, i, "y"), "label_invalid", f"must be {expected}")

    def to_json(self, y: float) -> Any:
        """A stored target as the caller sent it."""
        if self.kind == "number":
            return y
        return self.values[int(y)] if self.kind == "classes" else int(y)

    def to_column(self, y: NDArray[np.float64]) -> pa.Array:
        """Stored targets as an Arrow column that `from_column` can read."""
        if self.kind == "number":
            return pa.array(y)
        if self.kind == "count":
            return pa.array(y.astype(np.int64))
        if self.kind == "binary":
            return pa.array(y.astype(np.int8))
        whole = all(isinstance(value, int) for value in self.values)
        values = pa.array(self.values) if whole else pa.array(list(map(str, self.values)))
        return values.take(pa.array(y.astype(np.int64)))
