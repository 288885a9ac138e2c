"""Converts targets between the values that callers send and the numbers that the ledger stores."""

import json
import math
from typing import Any, Self

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from core.errors import Invalid
from core.kprior.model.categories import texts_of
from core.kprior.model.spec import PredictorSpec, Target, gives_scores, values_of
from core.kprior.model.target_scale import smallest
from service.parsing import columns, label_lists
from service.parsing.json_items import relocate

BINARY: dict[Any, float] = {0: 0.0, 1: 1.0}
"""True and 1.0 equal 1 as keys of a dictionary."""
LABEL_TEXTS = {
    spelling: float(i % 2)
    for i, text in enumerate(columns.LABEL_TEXTS)
    for spelling in (text, text.capitalize(), text.upper())
}
"""Words that mean 0 and 1."""
BINARY_TEXTS = {"0": 0.0, "1": 1.0, "0.0": 0.0, "1.0": 1.0, **LABEL_TEXTS}
"""The same and numbers, which are texts in CSV."""
MAX_NAMED_VALUES = 10
"""Number of classes that an error message lists."""
MAX_VALUES = {"number": 2.0**49, "count": 1e12}
"""Largest values that the solvers can handle. Networks sum squares in 32 bits, which has room for 2**30 squares of
2**98. The curvature of a count is the count: above 1e12, those of other examples are lost in 64 bits."""


class Targets:
    """Reads and writes the targets of one model."""

    def __init__(self, target: Target, soft: bool = True) -> None:
        self.target = target
        self.soft = soft
        """Binary targets: whether labels may be probabilities between 0 and 1."""
        self.kind = target["kind"]
        self.values = values_of(target)
        self.codes = {v: float(i) for i, v in enumerate(self.values)} if self.kind == "classes" else BINARY

    @classmethod
    def of(cls, spec: PredictorSpec) -> Self:
        """The targets of a model; the squared hinge, which separates two classes, has no soft labels."""
        return cls(spec["target"], soft=not gives_scores(spec))

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
        if self.kind == "labels":
            return label_lists.from_json(self.values, ys, field)
        if (i := next((i for i, y in enumerate(ys) if isinstance(y, list)), None)) is not None:
            raise self.unknown_label(i, field)
        if self.kind in ("binary", "classes"):
            codes = self.codes
            if self.kind == "binary" and str in set(map(type, ys)):
                ys = [LABEL_TEXTS.get(y, y) if isinstance(y, str) else y for y in ys]
            if self.kind == "classes" and bool in set(map(type, ys)):
                ys = [str(y).lower() if isinstance(y, bool) else y for y in ys]
            try:
                return np.array([codes[y] for y in ys], np.float64)
            except KeyError:
                if self.kind == "binary" and self.soft:
                    return self.soft_labels(ys, field)
                raise self.unknown_label(next(i for i, y in enumerate(ys) if y not in codes), field) from None
        for i, y in enumerate(ys):
            if isinstance(y, str):
                raise Invalid.at((field, i, "y"), "example_invalid", "expected a number")
        try:
            labels = np.array(ys, np.float64)
        except OverflowError:
            labels = np.array([float(y) if abs(y) < 2**1000 else 2.0**1000 for y in ys])
        return self.check_range(labels, field)

    def soft_labels(self, ys: list[Any], field: str) -> NDArray[np.float64]:
        """Labels of a binary target, some of which are probabilities."""
        for i, y in enumerate(ys):
            if isinstance(y, str) or not 0 <= y <= 1:
                raise self.unknown_label(i, field)
        return np.array(ys, np.float64)

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
        if self.kind == "labels":
            return label_lists.from_column(self.values, column, field)
        if self.kind == "binary" and numeric:
            labels = columns.numbers(column, field, "y")
            bad = ~self.is_probability(labels)
        elif self.kind in ("binary", "classes"):
            codes = BINARY_TEXTS if self.kind == "binary" else texts_of(self.values)
            labels = columns.find(column, codes, -1.0, field, "y")
            bad = ~(labels >= 0)
            if self.kind == "binary" and bad.any():
                labels[bad] = [probability_in(text) for text in columns.texts(column.filter(pa.array(bad)), field, "y")]
                bad = ~self.is_probability(labels)
        else:
            return self.check_range(self.parse_numbers(column, field), field)
        if bad.any():
            raise self.unknown_label(int(bad.argmax()), field)
        return labels

    def is_probability(self, labels: NDArray[np.float64]) -> NDArray[np.bool_]:
        """(n,) which numbers are labels of a binary target."""
        valid: NDArray[np.bool_] = (labels >= 0) & (labels <= 1) if self.soft else (labels == 0) | (labels == 1)
        return valid

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
        if (least := smallest(self.target)) is not None and (bad := y <= least).any():
            message = f"must be above {least:g}, because the model fits the target's logarithm"
            raise Invalid.at((field, int(bad.argmax()), "y"), "label_invalid", message)
        if self.kind == "count":
            bad = (y < 0) | (y != np.floor(y))
            if bad.any():
                raise Invalid.at((field, int(bad.argmax()), "y"), "label_invalid", "a count must be 0, 1, 2, ...")
        return y

    def missing_label(self, i: int, field: str) -> Exception:
        return Invalid.at((field, i, "y"), "label_missing", "is missing")

    def unknown_label(self, i: int, field: str) -> Exception:
        if self.kind not in ("binary", "classes"):
            return Invalid.at((field, i, "y"), "example_invalid", "expected a number")
        named = [json.dumps(value, ensure_ascii=False) for value in self.values[:MAX_NAMED_VALUES]]
        more = f" or {len(self.values) - len(named)} more" if len(self.values) > len(named) else ""
        expected = f"one of the target's values: {', '.join(named)}{more}"
        if self.kind == "binary":
            expected = "0 or 1, true or false, yes or no" + (", or a probability from 0 to 1" if self.soft else "")
        return Invalid.at((field, i, "y"), "label_invalid", f"must be {expected}")

    def to_json(self, y: float) -> Any:
        """A stored target as the caller sent it."""
        if self.kind == "number":
            return y
        if self.kind == "labels":
            return label_lists.to_json(self.values, y)
        if self.kind == "classes":
            return self.values[int(y)]
        return int(y) if y == int(y) else y

    def to_column(self, y: NDArray[np.float64], soft: bool = False) -> pa.Array:
        """Stored targets as an Arrow column that `from_column` can read; `soft`: whether there are soft labels."""
        if self.kind == "labels":
            return label_lists.to_column(self.values, y)
        if self.kind == "number":
            return pa.array(y)
        if self.kind == "count":
            return pa.array(y.astype(np.int64))
        if self.kind == "binary":
            return pa.array(y if soft else y.astype(np.int8))
        whole = all(isinstance(value, int) for value in self.values)
        values = pa.array(self.values) if whole else pa.array(list(map(str, self.values)))
        return values.take(pa.array(y.astype(np.int64)))


def probability_in(text: str | None) -> float:
    """The number in a text; NaN if there is none."""
    try:
        return float(text or "")
    except ValueError:
        return math.nan
