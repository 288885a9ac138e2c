"""Random rows of the ledger, for adapting networks and for the promotion gate. The cost does not grow with the length
of the ledger.

Positions are drawn at random; those of removed rows and of the other split are skipped. Called by the worker.
"""

import math
from functools import cached_property

import numpy as np
import torch
from numpy.typing import NDArray

from core.database import Database
from core.kprior import Examples
from core.kprior.data.examples import concatenate
from core.kprior.model.spec import Spec
from core.ledger import bulk
from core.ledger.layouts import Layout
from core.ledger.passes import IN_FORCE, NOT_REMOVED
from core.ledger.queries import batched
from core.tables.ledger import HAS_CONTENT

MAX_TRIES_PER_ROW = 64
"""Random positions to try for each row at most. If fewer rows are in force, all their positions are read once."""
POSITIONS_PER_QUERY = 5_000
"""Positions in one query."""


class LedgerDraw:
    """Draws from the `left` training (or holdout) rows that were added until `since` and are in force at `at`."""

    def __init__(
        self, database: Database, model_id: int, spec: Spec, since: int, at: int, left: int, holdout: bool = False
    ) -> None:
        self.database, self.model_id, self.since, self.at, self.left = database, model_id, since, at, left
        self.holdout = holdout
        with database.read() as session:
            self.layout = Layout.at(session, model_id, spec, at)

    def __call__(self, count: int, seed: int) -> Examples:
        """Up to `count` distinct rows, in random order; the same for the same seed."""
        generator = np.random.default_rng(seed)
        few = self.left <= 2 * count or self.left * MAX_TRIES_PER_ROW < self.since
        pool = generator.permutation(self.all_positions) if few else self._guess(count, generator)
        parts, drawn = [], 0
        for positions in batched(pool.tolist(), min(POSITIONS_PER_QUERY, self.layout.chunk)):
            if drawn >= count:
                break
            rows = self._rows(list(positions))
            rows = rows.take(torch.from_numpy(generator.permutation(len(rows))))
            parts.append(rows)
            drawn += len(rows)
        rows = concatenate(parts) if parts else self.layout.examples(bulk.to_rows([], self.layout.read_type))
        return rows.take(torch.arange(min(count, len(rows))))

    @cached_property
    def all_positions(self) -> NDArray[np.int64]:
        """The positions of all rows that can be drawn."""
        where = f"model_id = :model AND holdout = :holdout AND position <= :since AND {IN_FORCE} AND {HAS_CONTENT.text}"
        values = {"model": self.model_id, "holdout": self.holdout, "since": self.since, "at": self.at}
        with self.database.read() as session:
            return np.sort(bulk.positions(session, where, values))

    def _guess(self, count: int, generator: np.random.Generator) -> NDArray[np.int64]:
        """Distinct random positions, so many that about `count` of them have a row that can be drawn."""
        tries = math.ceil(1.2 * count * self.since / self.left) + 100
        drawn = np.unique(generator.integers(1, self.since + 1, tries))
        return generator.permutation(drawn)

    def _rows(self, positions: list[int]) -> Examples:
        where = f"holdout = :holdout AND {NOT_REMOVED} AND {HAS_CONTENT.text}"
        values = {"holdout": self.holdout, "at": self.at}
        with self.database.read() as session:
            rows = bulk.select_at(session, self.model_id, positions, where, values, self.layout.read_type)
        return self.layout.examples(rows, skip_unencoded=True)
