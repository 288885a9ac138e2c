"""Clusters of rows for standard errors: all rows of one subject."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

Integers = NDArray[np.int64]


def cluster(positions: Integers, subjects: Mapping[int, bytes]) -> Integers:
    """A number for each row: the same for all rows of a subject, in every job, and its own for a row without one."""
    where = [i for i, position in enumerate(positions.tolist()) if position in subjects]
    numbers = -positions
    if where:
        hashes = b"".join([subjects[position][:8] for position in positions[where].tolist()])
        numbers[where] = (np.frombuffer(hashes, ">u8") >> np.uint64(1)).astype(np.int64)
    return numbers


def number_repeated(clusters: Integers | None) -> Integers | None:
    """The clusters as numbers 0, 1, 2, ...; None if there are none, or if each of them is a single row.

    >>> number_repeated(np.array([7, -2, 7])), number_repeated(np.array([3, 5]))
    (array([1, 0, 1]), None)
    """
    if clusters is None or not len(clusters):
        return None
    numbers = np.unique(clusters, return_inverse=True)[1]
    return numbers if int(numbers.max()) + 1 < len(numbers) else None
