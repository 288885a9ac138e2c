"""Sets of labels as single numbers, as the ledger stores them: label k of the target's values is the bit 2^k."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:  # the types of specs need no torch
    from torch import Tensor

MAX_LABELS = 50
"""Largest number of labels: a double represents whole numbers of 53 bits exactly."""


def to_matrix(codes: NDArray[np.float64], count: int) -> NDArray[np.float64]:
    """(n,) sets -> (n, count), 1 for each label in the set. NaN is the empty set.

    >>> to_matrix(np.array([0.0, 5.0]), 3).tolist()
    [[0.0, 0.0, 0.0], [1.0, 0.0, 1.0]]
    """
    bits: NDArray[np.int64] = np.nan_to_num(codes).astype(np.int64)[:, None] >> np.arange(count)
    return (bits & 1).astype(np.float64)


def to_codes(matrix: NDArray[Any]) -> NDArray[np.float64]:
    """The inverse of `to_matrix`: (n, count) -> (n,)."""
    codes: NDArray[np.float64] = (matrix > 0.5) @ 2.0 ** np.arange(matrix.shape[1])
    return codes


def recode_labels(places: Sequence[float], codes: NDArray[np.float64]) -> NDArray[np.float64]:
    """Sets after a change of the target: `places` are the new indices of its old values, NaN for dropped ones.

    >>> recode_labels((1.0, math.nan, 0.0), np.array([4.0, 3.0, math.nan])).tolist()
    [1.0, 2.0, nan]
    """
    bits = [0.0 if math.isnan(place) else 2.0**place for place in places]
    recoded: NDArray[np.float64] = np.where(np.isnan(codes), np.nan, to_matrix(codes, len(places)) @ np.array(bits))
    return recoded


def convert_label_sets(y: Tensor, places: Sequence[float], count: int) -> Tensor:
    """Targets after a change of the target: (n, K_old) -> (n, K_new); new labels are zero."""
    converted = y.new_zeros(len(y), count)
    for old, place in enumerate(places):
        if not math.isnan(place):
            converted[:, int(place)] = y[:, old]
    return converted
