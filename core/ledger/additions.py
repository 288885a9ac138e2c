"""Adding examples. Positions are handed out under the lock on the model's row."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from sqlalchemy.exc import IntegrityError
from sqlalchemy.orm import Session

from core.database import Database, release_locks_early
from core.errors import Conflict
from core.ledger import bulk, positions, postgres
from core.ledger.batch import Batch
from core.ledger.positions import Counts
from core.ledger.queries import look_up_in_force
from core.ledger.specs import layout_at
from core.tables.ledger import ChangeKind, Example

R = TypeVar("R")


class LayoutChanged(Conflict):
    """The layout changed after the batch was parsed: the caller has to parse it again."""

    def __init__(self) -> None:
        super().__init__("model_changed", "The model's input or target changed meanwhile; send the examples again.")


@dataclass(frozen=True)
class Added:
    """The result of adding a batch."""

    accepted: int
    duplicates: int
    first_position: int | None
    last_position: int | None


def add(
    database: Database,
    model_id: int,
    holdout_fraction: float,
    batch: Batch,
    within: Callable[[Callable[[Session], Added]], R] | None = None,
) -> Added | R:
    """Append the examples of a batch that are not in force yet.

    Most batches are new from end to end: the first try asks nothing before it stores, and the second, if there has to
    be one, looks up what is there.

    Parameters
    ----------
    share
        The model's holdout share, as it was a moment ago; if it is another by now, that costs a second try.
    within
        Runs what it is given in one transaction of its own, and may be called twice. None: the ledger does, at less
        cost.

    Returns
    -------
    What came of it, or what `within` made of that.

    Raises
    ------
    Conflict
        If an id is in force with other content; nothing of the batch is stored.
    NotFound
        If the model is gone.
    LayoutChanged
        If the input or the target changed meanwhile.
    """
    # before the lock is taken, so that other writers of the model do not wait for it
    bulk.prepare(batch, database.sqlite)

    def add_at_once(session: Session) -> Added:
        return add_new(session, model_id, holdout_fraction, batch) or add_with_care(session)

    def add_with_care(session: Session) -> Added:
        holdout_fraction, layout = positions.lock(session, model_id)
        if layout != batch.layout:
            raise LayoutChanged
        return add_locked(session, model_id, holdout_fraction, batch)

    if within is not None:
        with suppress(IntegrityError):
            return within(add_at_once)
        return within(add_with_care)
    with suppress(IntegrityError):
        if added := add_alone(database, model_id, holdout_fraction, batch):
            return added
    with database.write() as session:
        return add_with_care(session)


def add_new(session: Session, model_id: int, holdout_fraction: float, batch: Batch) -> Added | None:
    """Append a batch that is entirely new, as most are; raises IntegrityError, which ends the transaction, if not.

    It asks nothing first: the database's own unique index tells. None, and nothing has happened, if the model is gone,
    or its holdout share or its layout is another.
    """
    holdout = batch.holdouts(holdout_fraction)
    counts, size, layout = Counts.of_new(holdout), len(batch), batch.layout
    last = positions.advance(
        session, model_id, size, ChangeKind.ADDED, counts, holdout_fraction=holdout_fraction, layout=layout
    )
    if last is None:
        return None
    first = last - len(batch) + 1
    bulk.insert(session, model_id, first, batch, holdout)
    release_locks_early(session)  # the next writer of the model need not wait for the disk, too
    return Added(len(batch), 0, first, last)


def add_alone(database: Database, model_id: int, holdout_fraction: float, batch: Batch) -> Added | None:
    """`add_new` in a transaction of its own."""
    if database.sqlite:
        with database.write() as session:
            return add_new(session, model_id, holdout_fraction, batch)
    with database.connect() as connection:
        last = postgres.append(connection, model_id, holdout_fraction, batch, batch.holdouts(holdout_fraction))
    return None if last is None else Added(len(batch), 0, last - len(batch) + 1, last)


def add_locked(session: Session, model_id: int, holdout_fraction: float, batch: Batch) -> Added:
    """Append the new examples of a batch to a locked model; raises Conflict if an id is in force with other content."""
    new = find_new(session, model_id, holdout_fraction, batch)
    if not new:
        return Added(0, len(batch), None, None)
    added = add_new(session, model_id, holdout_fraction, batch.take(new))
    assert added is not None, "the model is locked"
    return replace(added, duplicates=len(batch) - len(new))


def find_new(session: Session, model_id: int, holdout_fraction: float, batch: Batch) -> list[int]:
    """Indices of the examples that are neither in force nor earlier in the batch; the others must be repetitions."""
    columns = (
        Example.id,
        Example.x,
        Example.y,
        Example.subject,
        Example.weight,
        Example.holdout,
        Example.position,
    )
    ids = batch.ids.to_pylist()
    found = look_up_in_force(session, model_id, Example.id, ids, columns)
    layout = layout_at(session, model_id, batch.layout)
    seen: dict[str, tuple[Any, ...]] = {}
    for id_, x, y, subject, weight, held_out, position in found:
        y, x = layout.content(position, y, x)
        seen[id_] = (x, y, subject, 1.0 if weight is None else weight, held_out)
    new = []
    weights = batch.weights_or([None] * len(batch))
    contents = zip(batch.features, batch.y.tolist(), batch.subjects, weights, batch.splits, strict=True)
    holdout = batch.holdouts(holdout_fraction).tolist()
    for i, (id_, content) in enumerate(zip(ids, contents, strict=True)):
        before = seen.get(id_)
        if before is None:
            seen[id_] = (*content[:4], holdout[i])
            new.append(i)
        elif before[:4] != content[:4] or (None not in (before[4], content[4]) and before[4] != content[4]):
            raise Conflict.at(("examples", i), "example_conflict", "the id is taken by an example with other content")
    return new
