"""The sample of the holdout that versions are evaluated on. Its size is bounded, however long the ledger is.

`holdout_split` decides which examples are in the holdout. The sample consists of the holdout rows in force whose hash
(of their position) is at most a threshold: 1 while all rows fit, otherwise the k-th smallest hash (a bottom-k sample).
So all versions of a model are evaluated on the same rows, except those added or removed in between. The sample is
stored in the database and updated with the rows added and removed since. The whole ledger is read again only when
removals have left fewer than half of the rows that the sample could have. Called by the worker.
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
from core.kprior.data.keyed_random import uniform
from core.kprior.model.spec import Spec
from core.ledger import bulk
from core.ledger.passes import IN_FORCE, NOT_REMOVED, LedgerRows
from core.ledger.queries import batched
from core.tables.ledger import HAS_CONTENT, HoldoutSample
from core.tables.models import Model

SAMPLE_SEED = 2**40
"""Above the seeds that choose memories: a version must not be evaluated on rows that it remembers."""
POSITIONS_PER_QUERY = 100_000
"""Positions read at once."""
MAX_SAMPLE_LAG = 5_000
"""Positions by which a stored sample may lag behind if its rows did not change: reading them again costs the next job
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
        """The positions of the rows, ascending."""
        return np.frombuffer(self.positions, np.int64)

    def with_rows(self, rows: Positions) -> Sample:
        """The sample of these rows: those with the smallest hashes, as many as the size allows."""
        hashes = hashes_of(rows)
        inside = hashes <= self.threshold
        rows, hashes, threshold = rows[inside], hashes[inside], self.threshold
        if len(rows) > self.size:
            best = np.argsort(hashes, kind="stable")[: self.size]
            rows, threshold = rows[best], float(hashes[best[-1]])
        return replace(self, threshold=threshold, positions=np.sort(rows).tobytes())


class SampledRows(LedgerRows):
    """The rows of a sample that are in force at a position, read chunk by chunk on every iteration."""

    WHERE = f"{NOT_REMOVED} AND {HAS_CONTENT.text}"

    def __init__(
        self,
        database: Database,
        model_id: int,
        spec: Spec,
        at: int,
        rows: Positions,
        removals_position: int | None = None,
    ) -> None:
        self.positions = rows[rows <= at]  # the span selects a range of these
        self.subjects: dict[int, bytes] = {}
        """By position: the subjects of the rows that were read, where they have one."""
        super().__init__(database, model_id, spec, at, range(len(self.positions)))
        self.removals_position = max(at, removals_position or at)

    def outline(self) -> tuple[Positions, dict[int, bytes]]:
        """The positions of all rows, ascending, and the subjects of those that have one; their inputs are not read."""
        found: list[tuple[int, bytes | None]] = []
        for positions in batched(self.positions.tolist()):
            with self.database.read() as session:
                columns, values = "position, subject", {"at": self.removals_position}
                found += bulk.look_up(session, self.model_id, positions, columns, self.WHERE, values)
        subjects = {position: subject for position, subject in found if subject is not None}
        return np.sort(np.array([position for position, _ in found], np.int64)), subjects

    def __iter__(self) -> Iterator[Examples]:
        where, values = self.WHERE, {"at": self.removals_position}
        for positions in batched(self.positions[self.span.start : self.span.stop].tolist(), self.layout.chunk):
            with self.database.read() as session:
                dtype = self.layout.read_type
                rows, found = bulk.select_with_subjects(session, self.model_id, positions, where, values, dtype)
            self.subjects.update(found)
            if len(rows):
                yield self.layout.examples(rows, self.skip_unencoded)


def hashes_of(rows: Positions) -> NDArray[np.float64]:
    """A pseudorandom number in (0, 1] for each row."""
    hashes: NDArray[np.float64] = uniform(torch.from_numpy(rows.copy()), SAMPLE_SEED).numpy()
    return hashes


def sample_holdout(
    database: Database, model_id: int, spec: Spec, at: int, size: int, removals_position: int | None = None
) -> SampledRows:
    """The holdout rows on which a version at a position is evaluated, without those removed until another position."""
    sample = update_sample(database, model_id, removals_position or at, size)
    return SampledRows(database, model_id, spec, at, sample.rows, removals_position)


def sample_training(database: Database, model_id: int, spec: Spec, at: int, size: int) -> SampledRows:
    """A sample of training rows, for a model without a holdout; reads the positions of all training rows."""
    return SampledRows(database, model_id, spec, at, scan(database, model_id, at, size, holdout=False).rows)


def update_sample(database: Database, model_id: int, at: int, size: int) -> Sample:
    """The model's sample, updated to `at` and stored.

    Concurrent jobs compute the same sample from the same ledger. A job that finds that another one has stored a sample
    first starts again from that sample.
    """
    while True:
        with database.read() as session:
            stored = as_sample(session.get(HoldoutSample, model_id))
            model = session.get(Model, model_id)
        in_force = model.holdout_count if model else 0
        if stored is None or stored.size != size:
            sample = scan(database, model_id, max(at, stored.position if stored else 0), size)
        elif stored.position >= at:
            return stored
        else:
            sample = advance(database, model_id, stored, at)
            if sample.threshold < 1 and 2 * len(sample.rows) < min(size, in_force):
                sample = scan(database, model_id, at, size)
            if sample.positions == stored.positions and at - stored.position < MAX_SAMPLE_LAG:
                return sample
        if store(database, model_id, stored, sample):
            return sample


def scan(database: Database, model_id: int, at: int, size: int, holdout: bool = True) -> Sample:
    """A new sample of all rows in force at a position."""
    return advance(database, model_id, Sample(0, size, 1.0, b""), at, holdout)


def advance(database: Database, model_id: int, sample: Sample, at: int, holdout: bool = True) -> Sample:
    """The sample at a later position. Reads only the rows that were added or removed since."""
    values = {"model": model_id, "holdout": holdout, "at": at}
    ours = "model_id = :model AND holdout = :holdout"
    if len(sample.rows):
        with database.read() as session:
            where = f"{ours} AND removed > :since AND removed <= :at"
            removed = bulk.positions(session, where, {**values, "since": sample.position})
        sample = sample.with_rows(np.setdiff1d(sample.rows, removed))
    for after in range(sample.position, at, POSITIONS_PER_QUERY):
        with database.read() as session:
            where = f"{ours} AND position > :after AND position <= :until AND {IN_FORCE}"
            window = {"after": after, "until": min(after + POSITIONS_PER_QUERY, at)}
            added = bulk.positions(session, where, {**values, **window})
        sample = sample.with_rows(np.concatenate([sample.rows, added]))
    return replace(sample, position=at)


def store(database: Database, model_id: int, before: Sample | None, after: Sample) -> bool:
    """Store a sample for the next job; returns False, and stores nothing, if the stored one is no longer `before`."""
    with database.write() as session:
        if session.get(Model, model_id, with_for_update={"skip_locked": True}) is None:
            return True  # deleted: no job follows; locked: rather than wait, leave it to the next job
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
