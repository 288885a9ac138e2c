"""Targets as callers send them -> the numbers that the ledger stores, and predictions back in the callers' terms."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from core.errors import Invalid
from core.kprior.model.categories import spellings_of
from core.kprior.model.spec import Target, values_of
from service.parsing import columns

BINARY: dict[Any, float] = {0: 0.0, 1: 1.0}
"""True and 1.0 are 1 to a dictionary, too."""
MAX_VALUES = {"number": 2.0**49, "count": 1e12}
"""What the solver can carry. Squares of numbers are summed in 32 bits where there is a network: 2**30 examples of
2**98 each are what fits. The curvature of a count is the count: above 1e12 it leaves nothing of others' in 64 bits."""


class Targets:
    """How one model's targets are read and written."""

    def __init__(self, target: Target) -> None:
        self.target = target
        self.kind = target["kind"]
        self.values = values_of(target)
        self.codes = {v: float(i) for i, v in enumerate(self.values)} if self.kind == "classes" else BINARY

    def from_json(self, ys: list[Any], field: str) -> NDArray[np.float64]:
        """Decoded labels -> (n,)."""
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
            made = np.array(ys, np.float64)
        except OverflowError:
            made = np.array([float(y) if abs(y) < 2**1000 else 2.0**1000 for y in ys])
        return self.check_range(made, field)

    def from_column(self, column: pa.ChunkedArray, field: str) -> NDArray[np.float64]:
        """A column of labels -> (n,)."""
        numeric = columns.is_number(column.type)
        if self.kind == "binary" and numeric:
            made = columns.numbers(column, field, "y")
            bad = (made != 0) & (made != 1)
        elif self.kind in ("binary", "classes"):
            codes = spellings_of([0, 1, *columns.BOOLEAN_TEXTS] if self.kind == "binary" else self.values)
            made = columns.find(column, codes, -1.0, field, "y")
            bad = ~(made >= 0)
            made = made % 2 if self.kind == "binary" else made
        else:
            return self.check_range(self.parse_numbers(column, field), field)
        if bad.any():
            raise self.unknown_label(int(bad.argmax()), field)
        return made

    def parse_numbers(self, column: pa.ChunkedArray, field: str) -> NDArray[np.float64]:
        """Numbers, also where CSV gave text."""
        if pa.types.is_string(column.type):
            texts = columns.texts(column, field, "y")
            made = np.empty(len(texts))
            for i, text in enumerate(texts):
                try:
                    made[i] = float(columns.BOOLEAN_TEXTS.get(text.lower(), text) if text else "")
                except ValueError:
                    raise Invalid.at((field, i, "y"), "example_invalid", "expected a number") from None
            return made
        return columns.numbers(column, field, "y")

    def check_range(self, y: NDArray[np.float64], field: str) -> NDArray[np.float64]:
        bad = ~np.isfinite(y)
        if bad.any():
            raise Invalid.at((field, int(bad.argmax()), "y"), "number_not_finite", "is not finite")
        bad = np.abs(y) > MAX_VALUES[self.kind]
        if bad.any():
            message = f"is beyond {MAX_VALUES[self.kind]:.15g}, more than a model can carry; give it in larger units"
            raise Invalid.at((field, int(bad.argmax()), "y"), "number_too_large", message)
        if self.kind == "count":
            bad = (y < 0) | (y != np.floor(y))
            if bad.any():
                raise Invalid.at((field, int(bad.argmax()), "y"), "label_invalid", "a count is 0, 1, 2, ...")
        return y

    def unknown_label(self, i: int, field: str) -> Exception:
        what = "0 or 1" if self.kind == "binary" else "among the target's values"
        return Invalid.at((field, i, "y"), "label_invalid", f"is not {what}")

    def to_json(self, y: float) -> Any:
        """A stored target as it came."""
        if self.kind == "number":
            return y
        return self.values[int(y)] if self.kind == "classes" else int(y)

    def to_column(self, y: NDArray[np.float64]) -> pa.Array:
        """Stored targets as an Arrow column, from which they can be read again."""
        if self.kind == "number":
            return pa.array(y)
        if self.kind == "count":
            return pa.array(y.astype(np.int64))
        if self.kind == "binary":
            return pa.array(y.astype(np.int8))
        whole = all(isinstance(value, int) for value in self.values)
        values = pa.array(self.values) if whole else pa.array(list(map(str, self.values)))
        return values.take(pa.array(y.astype(np.int64)))
