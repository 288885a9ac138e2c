"""Reading the ledger: passes over the examples in force at a position, as the engine's `Data`.

The examples in force at a position never change. So a pass is a sequence of short queries, not one long transaction:
writers are not blocked, a pass can be repeated, and several processes can read its shards. Memory holds one chunk at a
time.
"""

import copy
from collections.abc import Iterator, Sequence
from typing import Self

from sqlalchemy.orm import Session
from torch import Tensor

from core.database import Database
from core.kprior import Data, Examples
from core.kprior.data.examples import concatenate
from core.kprior.model.spec import Spec
from core.kprior.passes.partitioned import PartitionedData, first_rows
from core.ledger import bulk
from core.ledger.layouts import Layout
from core.ledger.queries import batched
from core.tables.ledger import HAS_CONTENT

MAX_SHARDS = 32
"""Shards of one pass: a few for each worker of a fleet, and few enough to record, store and merge."""
SMALL_BYTES = 64 * 2**20
NOT_REMOVED = "(removed IS NULL OR removed > :at)"
IN_FORCE = f"position <= :at AND {NOT_REMOVED}"
ADDED = f"position > :since AND {IN_FORCE}"
# an example added and removed within the range cancels out; the plus keeps SQLite from scanning all earlier positions
REMOVED = "+position <= :since"


class LedgerRows(PartitionedData):
    """Examples of a model at a position, in a span of positions that can be split into shards."""

    def __init__(self, database: Database, model_id: int, spec: Spec, at: int, span: range) -> None:
        self.database, self.model_id, self.spec, self.span = database, model_id, spec, span
        self.at = at
        """The position whose spec applies."""
        self.removals_position = at
        """The position up to which removed examples are left out."""
        self.skip_unencoded = False
        """Whether examples without features are left out; otherwise reading them raises an error."""
        with database.read() as session:
            self.layout = Layout.at(session, model_id, spec, at)

    def shards(self) -> list[Self]:
        """The shards of the span.

        They depend only on the ledger, so a sum over the shards is the same wherever each of them is read.
        """
        return [self.narrow(span) for span in split_span(self.span, self.layout.chunk)] or [self]

    def narrow(self, span: range) -> Self:
        """The same rows, restricted to a part of the span."""
        part = copy.copy(self)
        part.span = span
        return part

    def head(self, count: int) -> Examples | None:
        # without reading a chunk, which can be all rows
        start = self.span.start
        some = first_rows(self.narrow(range(start, min(start + count, self.span.stop))), count)
        return super().head(count) if some is None else some

    def rows(self, key: Tensor) -> Examples:
        with self.database.read() as session:
            return read_positions(session, self.model_id, self.spec, key.tolist(), self.at)


class Pass(LedgerRows):
    """Examples that satisfy a condition, read chunk by chunk on every iteration."""

    def __init__(
        self,
        database: Database,
        model_id: int,
        spec: Spec,
        where: str,
        holdout: bool,
        span: range,
        by: str = "position",
        **values: int,
    ) -> None:
        # `by` is the column whose values (after each position of the span) can satisfy the condition
        super().__init__(database, model_id, spec, span.stop, span)
        window = f"{by} > :after AND {by} <= :until"
        self.where = f"model_id = :model AND holdout = :holdout AND {window} AND {where} AND {HAS_CONTENT.text}"
        self.values = {"model": model_id, "holdout": holdout, **values}
        self.removals_position = values.get("at", self.at)

    def __iter__(self) -> Iterator[Examples]:
        # a window of positions, not of rows, so that the database neither sorts nor counts
        for after in self.span[:: self.layout.chunk]:
            until = min(after + self.layout.chunk, self.span.stop)
            with self.database.read() as session:
                values = {**self.values, "after": after, "until": until}
                rows = bulk.select(session, self.where, values, self.layout.read_type)
            if len(rows):
                yield self.layout.examples(rows, self.skip_unencoded)


def split_span(span: range, chunk: int) -> list[range]:
    """Split a span into at most MAX_SHARDS ranges of 1, 2, 4, ... chunks, whichever is the smallest that suffices.

    >>> split_span(range(5, 12), 3)
    [range(5, 8), range(8, 11), range(11, 12)]
    """
    size = chunk
    while size * MAX_SHARDS < len(span):
        size *= 2
    return [range(start, min(start + size, span.stop)) for start in span[::size]]


def read_in_force(
    database: Database,
    model_id: int,
    spec: Spec,
    at: int,
    holdout: bool = False,
    removals_position: int | None = None,
) -> Pass:
    """All training (or holdout) examples in force at a position, without those removed up to `removals_position`."""
    return Pass(database, model_id, spec, IN_FORCE, holdout, range(at), at=max(at, removals_position or at))


def read_added(database: Database, model_id: int, spec: Spec, since: int, at: int, holdout: bool = False) -> Pass:
    """Training (or holdout) examples that are in force at `at` and were added after `since`."""
    return Pass(database, model_id, spec, ADDED, holdout, range(since, at), since=since, at=at)


def read_removed(
    database: Database, model_id: int, spec: Spec, since: int, at: int, removals_position: int | None = None
) -> Pass:
    """Training examples that were in force at `since` and were removed until `at`, but after `removals_position`."""
    span = range(since if removals_position is None else removals_position, at)
    return Pass(database, model_id, spec, REMOVED, False, span, by="removed", since=since)


def load_if_small(data: Data) -> Data:
    """Load the examples into memory if they are small: the engine reads added and removed examples several times."""
    chunks, size = [], 0
    for chunk in data:
        chunks.append(chunk)
        size += chunk.x.numel() * chunk.x.element_size()
        if size > SMALL_BYTES:
            return data
    return chunks


def read_positions(session: Session, model_id: int, spec: Spec, positions: Sequence[int], at: int) -> Examples:
    """The examples at the given positions, whether in force at `at` or not. A version's memory refers to them.

    Without those that were removed before the model's frozen encoder encoded them.
    """
    layout = Layout.at(session, model_id, spec, at)
    parts = [
        layout.examples(bulk.select_at(session, model_id, some, HAS_CONTENT.text, {}, layout.read_type), True)
        for some in batched(sorted(set(positions)))
    ]
    return concatenate(parts) if parts else layout.examples(bulk.to_rows([], layout.read_type))
