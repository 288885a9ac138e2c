"""Adding examples. Positions are assigned under the lock on the model's row.

Examples without a label are not part of the ledger (`pending`). No id is used twice among both kinds.
"""

import math
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, TypeVar

from sqlalchemy.exc import IntegrityError
from sqlalchemy.orm import Session

from core.database import Database, release_locks_early
from core.errors import Conflict
from core.ledger import bulk, labels, pending, positions, postgres
from core.ledger.batch import Batch
from core.ledger.positions import Counts
from core.ledger.queries import look_up_in_force
from core.ledger.specs import layout_at
from core.models.policy import HoldoutPolicy
from core.tables.ledger import ChangeKind, Example, PendingExample

R = TypeVar("R")


class LayoutChanged(Conflict):
    """The layout changed after the batch was parsed: the caller has to parse it again."""

    def __init__(self) -> None:
        super().__init__("model_changed", "The model's input or target changed; send the examples again.")


@dataclass(frozen=True)
class Added:
    """The result of adding a batch."""

    accepted: int
    """Number of examples that were stored, with or without a label."""
    duplicates: int
    first_position: int | None
    """First ledger position that the batch took; None if it took none."""
    last_position: int | None


def add(
    database: Database,
    model_id: int,
    policy: HoldoutPolicy,
    batch: Batch,
    within: Callable[[Callable[[Session], Added]], R] | None = None,
) -> Added | R:
    """Append the examples of a batch that are not in force yet, and store those without a label as pending.

    Most batches contain only new examples, so the first attempt stores the batch without looking anything up. If that
    fails, or if the model or the batch has examples without a label, a second attempt looks up which examples are
    already stored, and reads the holdout policy again, which may be out of date. `within` runs the function that it is
    given in one transaction of its own and returns its result, converted or not; it may be called twice. Without it,
    this function opens the transaction, which is cheaper.

    Raises Conflict if an id is in force with different content (nothing of the batch is stored), NotFound if the model
    does not exist, and LayoutChanged if the input or the target changed after the batch was parsed.
    """
    # before the lock is taken, so that other writers of the model do not wait for this
    bulk.prepare(batch, database.sqlite)

    def add_optimistically(session: Session) -> Added:
        return add_new(session, model_id, policy, batch) or add_under_lock(session)

    def add_under_lock(session: Session) -> Added:
        current, layout_position = positions.lock(session, model_id)
        if layout_position != batch.layout_position:
            raise LayoutChanged
        return add_locked(session, model_id, current, batch)

    complete = not batch.unlabelled.any()
    if within is not None:
        if complete:
            with suppress(IntegrityError):
                return within(add_optimistically)
        return within(add_under_lock)
    with suppress(IntegrityError):
        if complete and (added := add_alone(database, model_id, policy, batch)):
            return added
    with database.write() as session:
        return add_under_lock(session)


def add_new(
    session: Session,
    model_id: int,
    policy: HoldoutPolicy,
    batch: Batch,
    kind: ChangeKind = ChangeKind.ADDED,
    locked: bool = False,
) -> Added | None:
    """Append a batch whose examples are all new. Raises IntegrityError, which ends the transaction, if one is not.

    There is no query beforehand: the unique index on ids detects conflicts. Unless the model is `locked`, returns None
    and changes nothing if the model does not exist, has pending examples, or its holdout policy or layout differs from
    what the caller expects.
    """
    holdout = batch.holdouts(policy)
    last = positions.advance(
        session,
        model_id,
        len(batch),
        kind,
        Counts.of_new(holdout),
        holdout=None if locked else policy,
        layout_position=batch.layout_position,
    )
    if last is None:
        return None
    first = last - len(batch) + 1
    bulk.insert(session, model_id, first, batch, holdout)
    release_locks_early(session)  # so that the next writer of the model does not wait for this commit to reach the disk
    return Added(len(batch), 0, first, last)


def add_alone(database: Database, model_id: int, policy: HoldoutPolicy, batch: Batch) -> Added | None:
    """`add_new` in a transaction of its own."""
    if database.sqlite:
        with database.write() as session:
            return add_new(session, model_id, policy, batch)
    with database.connect() as connection:
        last = postgres.append(connection, model_id, policy, batch, batch.holdouts(policy))
    return None if last is None else Added(len(batch), 0, last - len(batch) + 1, last)


def add_locked(
    session: Session, model_id: int, policy: HoldoutPolicy, batch: Batch, kind: ChangeKind = ChangeKind.ADDED
) -> Added:
    """Append the new examples of a batch to a locked model; raises Conflict if an id has different content."""
    found = compare(session, model_id, policy, batch)
    layout_position, holdout = batch.layout_position, batch.holdouts(policy)
    accepted = len(found.new) + len(found.pending) + len(found.labels)
    first = last = None
    if found.pending:
        pending.store(session, model_id, batch.take(found.pending), holdout[found.pending])
    if found.labels:
        rows = [row for _, row in found.labels]
        first, last = labels.apply(session, model_id, rows, batch.y[[i for i, _ in found.labels]], layout_position)
    if found.new:
        added = add_new(session, model_id, policy, batch.take(found.new), kind, locked=True)
        assert added is not None, "the model is locked"
        first, last = first or added.first_position, added.last_position
    return Added(accepted, len(batch) - accepted, first, last)


@dataclass(frozen=True)
class Compared:
    """What is new in a batch, as indices of its examples."""

    new: list[int]
    """New examples with a label."""
    pending: list[int]
    """New examples without one."""
    labels: list[tuple[int, PendingExample]]
    """Examples that were stored without their label, and these rows."""


def compare(session: Session, model_id: int, policy: HoldoutPolicy, batch: Batch) -> Compared:
    """Compare a batch with the stored examples; raises Conflict if an id is in use with different content.

    An example that was sent with a label and comes again without one is a duplicate.
    """
    columns = (Example.id, Example.x, Example.y, Example.subject, Example.weight, Example.holdout, Example.position)
    ids = batch.ids.to_pylist()
    # an example in quarantine counts as present: sent again, it must not slip past the decision about it
    in_force = look_up_in_force(session, model_id, Example.id, ids, columns, quarantined=True)
    layout = layout_at(session, model_id, batch.layout_position)
    seen: dict[str, tuple[Any, ...]] = {}
    for id_, x, y, subject, weight, held_out, position in in_force:
        y, x = layout.content(position, y, x)
        seen[id_] = (y, x, subject, 1.0 if weight is None else weight, held_out)
    waiting = pending.find(session, model_id, ids)
    found = Compared([], [], [])
    weights = batch.weights_or([None] * len(batch))
    contents = zip(batch.features, batch.subjects, weights, batch.splits, strict=True)
    holdout = batch.holdouts(policy).tolist()
    for i, (id_, y, content) in enumerate(zip(ids, batch.y.tolist(), contents, strict=True)):
        labelled, before, row = not math.isnan(y), seen.get(id_), waiting.get(id_)
        if before is not None:
            if not is_same(before[1:], content) or (labelled and before[0] != y):
                raise conflict(i)
        elif row is None or (row.restricted and labelled):
            seen[id_] = (y, *content[:3], holdout[i])
            (found.new if labelled else found.pending).append(i)
        elif not is_same(pending.content_of(row, layout), content):
            raise conflict(i)
        elif labelled:
            seen[id_] = (y, *content[:3], row.holdout)
            found.labels.append((i, row))
    return found


def is_same(before: tuple[Any, ...], content: tuple[Any, ...]) -> bool:
    """Whether an example has the same input, subject, weight and, where one is given, split as before."""
    *earlier, held_out = before
    *given, split = content
    return earlier == given and split in (None, held_out)


def conflict(i: int) -> Conflict:
    return Conflict.at(("examples", i), "example_conflict", "another example with this id has different content")
