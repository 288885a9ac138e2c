"""Segments: rows with the same value of a category or boolean column, judged one by one by gate, windows and drift.

With k segments, the chance that one of them looks worse by chance is about k times as large as for all rows together.
The gate therefore divides the error probability of its limit by k (Bonferroni's correction): for 3 standard errors and
20 segments, a segment must be worse by 3.8 standard errors.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtr, ndtri
from torch import Tensor

from core.kprior import Data
from core.kprior.model.spec import Column, Spec

MAX_VALUES = 20
"""Values of a column that are judged: those with most rows."""
MISSING, OTHER = "(missing)", "(other)"


@dataclass(frozen=True)
class Segment:
    """Rows with the same value of a column."""

    column: str
    value: str
    rows: NDArray[np.bool_]

    def take(self, chosen: NDArray[np.bool_]) -> Segment:
        """The same segment of a subset of the rows."""
        return replace(self, rows=self.rows[chosen])


def name_rows(spec: Spec, columns: Sequence[str], inputs: Iterable[Tensor]) -> dict[str, NDArray[np.str_]]:
    """By column: (n,) the names of the values of n rows, whose inputs are given in parts.

    Columns that the table does not have, or that are neither categories nor booleans, are left out: they may have been
    dropped since the policy was set.
    """
    described = [] if spec["input"]["kind"] != "table" else spec["input"]["columns"]
    places = {column["name"]: i for i, column in enumerate(described) if column["type"] in ("category", "boolean")}
    wanted = [places[name] for name in columns if name in places]
    parts = [x[:, wanted].double().numpy() for x in inputs if len(x)] if wanted else []
    if not parts:
        return {}
    named = {}
    for k, index in enumerate(wanted):
        codes, place = np.unique(np.concatenate([part[:, k] for part in parts]), return_inverse=True)
        names = np.array([name_value(described[index], code) for code in codes.tolist()])
        named[described[index]["name"]] = names[place]
    return named


def split_into_segments(spec: Spec, columns: Sequence[str], data: Data, min_rows: int) -> list[Segment]:
    """The segments of the rows that have at least `min_rows` rows, the largest first in each column."""
    segments: list[Segment] = []
    for column, names in name_rows(spec, columns, (chunk.x for chunk in data)).items():
        values, counts = np.unique(names, return_counts=True)
        largest = sorted(zip(counts.tolist(), values.tolist(), strict=True), key=lambda pair: (-pair[0], pair[1]))
        segments += [Segment(column, v, names == v) for n, v in largest[:MAX_VALUES] if n >= min_rows]
    return segments


def name_value(column: Column, code: float) -> str:
    """The name of a stored value.

    >>> colour = {"name": "colour", "type": "category", "values": ["red", "blue"]}
    >>> [name_value(colour, code) for code in (1.0, 7.0, math.nan)]
    ['blue', '(other)', '(missing)']
    >>> name_value({"name": "new", "type": "boolean"}, 1.0)
    'true'
    """
    if math.isnan(code):
        return MISSING
    if column["type"] != "category":
        return "true" if code else "false"
    values = column["values"]
    return str(values[int(code)]) if 0 <= code < len(values) else OTHER


def corrected_sigmas(sigmas: float, count: int) -> float:
    """The number of standard errors that one of `count` segments must be worse by.

    >>> round(corrected_sigmas(3.0, 20), 2), corrected_sigmas(3.0, 1)
    (3.82, 3.0)
    """
    return -float(ndtri(ndtr(-sigmas) / count)) if count > 1 else sigmas
