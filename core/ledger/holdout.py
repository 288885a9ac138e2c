"""The sample of the holdout that versions are evaluated on: of bounded size, however long the ledger is.

The sample is every holdout row in force whose hash, of its position, is at most a threshold: 1 while all of them fit,
else what leaves as many as may be (the bottom k). So all versions of a model are looked at with the same rows, but for
what came and went. It is kept in the database, and brought forward by what came and went since; only when removals have
left less than half of what it could be, the past is read again. Called by the worker.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import torch
from numpy.typing import NDArray

from core.database import Database
from core.kprior import Examples
from core.kprior.memory.sampling import uniform
from core.kprior.model.spec import Spec
from core.ledger import bulk
from core.ledger.passes import IN_FORCE, NOT_REMOVED, LedgerRows
from core.ledger.queries import batched
from core.tables.ledger import HAS_CONTENT, HoldoutSample
from core.tables.models import Model

SAMPLE_SEED = 2**40
"""Above the seeds that choose memories: the rows that versions are measured on must not be those that they remember."""
POSITIONS_PER_QUERY = 100_000
"""Positions that are read at once."""
MAX_SAMPLE_LAG = 5_000
"""Positions by which a stored sample may lag behind if nothing in it changed: reading them again costs the next job
less than a write."""

Positions = NDArray[np.int64]


@dataclass(frozen=True)
class Sample:
    """The positions of the sample's rows, as of a position of the ledger."""

    position: int
    size: int
    """The largest number of rows."""
    threshold: float
    positions: bytes

    @cached_property
    def rows(self) -> Positions:
        """The positions of the rows, in their order."""
        return np.frombuffer(self.positions, np.int64)

    def with_rows(self, rows: Positions) -> Sample:
        """The sample with those of these rows that have the smallest hashes, as many as the size allows."""
        hashes = hashes_of(rows)
        inside = hashes <= self.threshold
        rows, hashes, threshold = rows[inside], hashes[inside], self.threshold
        if len(rows) > self.size:
            best = np.argsort(hashes, kind="stable")[: self.size]
            rows, threshold = rows[best], float(hashes[best[-1]])
        return replace(self, threshold=threshold, positions=np.sort(rows).tobytes())


class SampledRows(LedgerRows):
    """The rows of a sample that are in force at a position, read chunk by chunk on every iteration."""

    def __init__(self, database: Database, model_id: int, spec: Spec, at: int, rows: Positions) -> None:
        self.positions = rows[rows <= at]  # the span says which of them are read
        super().__init__(database, model_id, spec, at, range(len(self.positions)))

    def __iter__(self) -> Iterator[Examples]:
        for some in batched(self.positions[self.span.start : self.span.stop].tolist(), self.layout.chunk):
            with self.database.read() as session:
                there = f"{NOT_REMOVED} AND {HAS_CONTENT}"
                rows = bulk.select_at(session, self.model_id, some, there, {"at": self.at}, self.layout.stored_dtype)
            if len(rows):
                yield self.layout.examples(rows)


def hashes_of(rows: Positions) -> NDArray[np.float64]:
    """A number in (0, 1] for each row."""
    hashes: NDArray[np.float64] = uniform(torch.from_numpy(rows.copy()), SAMPLE_SEED).numpy()
    return hashes


def sample_holdout(database: Database, model_id: int, spec: Spec, at: int, size: int) -> SampledRows:
    """The holdout rows on which a version at a position is evaluated."""
    return SampledRows(database, model_id, spec, at, update_sample(database, model_id, at, size).rows)


def sample_training(database: Database, model_id: int, spec: Spec, at: int, size: int) -> SampledRows:
    """A sample of training rows, for a model without a holdout; reads the positions of all of them."""
    return SampledRows(database, model_id, spec, at, scan(database, model_id, at, size, holdout=False).rows)


def update_sample(database: Database, model_id: int, at: int, size: int) -> Sample:
    """The model's sample, updated to `at` and stored.

    Of several jobs at once each makes the same of the same ledger; whoever finds that another was first begins with
    what that one has kept.
    """
    while True:
        with database.read() as session:
            kept = as_sample(session.get(HoldoutSample, model_id))
            model = session.get(Model, model_id)
        in_force = model.holdout_count if model else 0
        if kept is None or kept.size != size:
            made = scan(database, model_id, max(at, kept.position if kept else 0), size)
        elif kept.position >= at:
            return kept
        else:
            made = advance(database, model_id, kept, at)
            if made.threshold < 1 and 2 * len(made.rows) < min(size, in_force):
                made = scan(database, model_id, at, size)
            if made.positions == kept.positions and at - kept.position < MAX_SAMPLE_LAG:
                return made
        if store(database, model_id, kept, made):
            return made


def scan(database: Database, model_id: int, at: int, size: int, holdout: bool = True) -> Sample:
    """A new sample of all rows in force at a position."""
    return advance(database, model_id, Sample(0, size, 1.0, b""), at, holdout)


def advance(database: Database, model_id: int, sample: Sample, at: int, holdout: bool = True) -> Sample:
    """The sample at a later position: reads only the rows that were added or removed until then."""
    values = {"model": model_id, "holdout": holdout, "at": at}
    ours = "model_id = :model AND holdout = :holdout"
    if len(sample.rows):
        with database.read() as session:
            went = f"{ours} AND removed > :since AND removed <= :at"
            gone = bulk.positions(session, went, {**values, "since": sample.position})
        sample = sample.with_rows(np.setdiff1d(sample.rows, gone))
    for after in range(sample.position, at, POSITIONS_PER_QUERY):
        with database.read() as session:
            came = f"{ours} AND position > :after AND position <= :until AND {IN_FORCE}"
            window = {"after": after, "until": min(after + POSITIONS_PER_QUERY, at)}
            new = bulk.positions(session, came, {**values, **window})
        sample = sample.with_rows(np.concatenate([sample.rows, new]))
    return replace(sample, position=at)


def store(database: Database, model_id: int, before: Sample | None, after: Sample) -> bool:
    """Store a sample for the next job; returns False, and stores nothing, if the stored one is no longer `before`."""
    with database.write() as session:
        if session.get(Model, model_id, with_for_update={"skip_locked": True}) is None:
            return True  # deleted: no job follows; busy: the next job computes the sample again, and nobody has to wait
        row = session.get(HoldoutSample, model_id)
        if as_sample(row) != before:
            return False
        row = row or HoldoutSample(model_id=model_id)
        row.position, row.size = after.position, after.size
        row.threshold, row.positions = after.threshold, after.positions
        session.add(row)
    return True


def as_sample(row: HoldoutSample | None) -> Sample | None:
    return Sample(row.position, row.size, row.threshold, row.positions) if row else None
