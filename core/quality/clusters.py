"""Clusters of rows for standard errors: all rows of one subject."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray
from sqlalchemy.orm import Session

from core.ledger import bulk
from core.ledger.queries import batched

Integers = NDArray[np.int64]


def cluster(positions: Integers, subjects: Mapping[int, bytes]) -> Integers:
    """A number for each row: the same for all rows of a subject, in every job, and its own for a row without one."""
    where = [i for i, position in enumerate(positions.tolist()) if position in subjects]
    numbers = -positions
    if where:
        hashes = b"".join([subjects[position][:8] for position in positions[where].tolist()])
        numbers[where] = (np.frombuffer(hashes, ">u8") >> np.uint64(1)).astype(np.int64)
    return numbers


def read_clusters(session: Session, model_id: int, positions: Integers) -> Integers | None:
    """(n,) the clusters of the rows at some positions; None if no row has a subject."""
    subjects: dict[int, bytes] = {}
    for some in batched(positions.tolist()):
        subjects.update(bulk.subjects_at(session, model_id, some))
    return cluster(positions, subjects) if subjects else None
