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
