"""Adding examples. Positions are assigned under the lock on the model's row.

Examples without a label are not part of the ledger (`unlabelled_examples`). No id is used twice among both kinds.
"""

import math
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, TypeVar

from sqlalchemy.exc import IntegrityError
from sqlalchemy.orm import Session

from core.audit import entries
from core.audit.entries import About, Origin
from core.database import Database, release_locks_early
from core.errors import Conflict
from core.ledger import bulk, labels, positions, postgres_append, unlabelled_examples
from core.ledger.batch import Batch
from core.ledger.positions import Counts, Expected
from core.ledger.queries import look_up_in_force
from core.ledger.returning_subjects import NONE, Returning, check_treatment, report, store_aside
from core.ledger.spec_history import layout_at
from core.models.policy import HoldoutPolicy
from core.suppressions import NOBODY, Screen
from core.tables.audit import Action
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
    quarantined: int = 0
    """Number of accepted examples that are in quarantine, because they are about people whose data was erased."""

    @property
    def counts(self) -> dict[str, int]:
        """The counts of the audit log."""
        found = {"accepted": self.accepted, "duplicates": self.duplicates, "quarantined": self.quarantined}
        return {name: count for name, count in found.items() if count}


@dataclass(frozen=True)
class Ingest:
    """How the examples of a request are checked and recorded."""

    screen: Screen
    """Recognises people whose data was erased."""
    origin: Origin
    model: str
    """Name of the model, for the audit log."""


def add(
    database: Database,
    model_id: int,
    policy: HoldoutPolicy,
    batch: Batch,
    within: Callable[[Callable[[Session], Added]], R] | None = None,
    ingest: Ingest | None = None,
) -> Added | R:
    """Append the examples of a batch that are not in force yet, and store those without a label as pending.

    Most batches contain only new examples, so the first attempt stores the batch without looking anything up. If that
    fails, or if the model or the batch has examples without a label, a second attempt looks up which examples are
    already stored, and reads the holdout policy again, which may be out of date. `within` runs the function that it is
    given in one transaction of its own and returns its result, converted or not; it may be called twice. Without it,
    this function opens the transaction, which is cheaper, and writes the entry of the audit log. Without `ingest`, it
    neither looks for erased people nor writes an entry.

    Raises Conflict if an id is in force with different content or if a returning person is refused (nothing of the
    batch is stored), NotFound if the model does not exist, and LayoutChanged if the input or the target changed after
    the batch was parsed.
    """
    # before the lock is taken, so that other writers of the model do not wait for this
    bulk.prepare(batch, database.sqlite)

    complete, screened = not batch.unlabelled.any(), NOBODY
    if ingest is not None and complete:
        screened = ingest.screen.check(database, batch.subjects)
        check_treatment(screened, ingest.screen.treatment)

    def add_optimistically(session: Session) -> Added:
        return add_new(session, model_id, policy, batch, newest=screened.newest) or add_under_lock(session)

    def add_under_lock(session: Session) -> Added:
        current, layout_position = positions.lock(session, model_id)
        if layout_position != batch.layout_position:
            raise LayoutChanged
        if ingest is None:
            return add_locked(session, model_id, current, batch)
        found = check_treatment(ingest.screen.check_now(session, batch.subjects), ingest.screen.treatment)
        added = add_locked(session, model_id, current, batch, returning=found)
        if within is None:
            entries.record(session, ingest.origin, Action.EXAMPLES_ADDED, About(ingest.model, counts=added.counts))
        return added

    direct = complete and not screened.returning
    if within is not None:
        if direct:
            with suppress(IntegrityError):
                return within(add_optimistically)
        return within(add_under_lock)
    with suppress(IntegrityError):
        if direct and (added := add_alone(database, model_id, policy, batch, screened.newest, ingest)):
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
    newest: int = -1,
) -> Added | None:
    """Append a batch whose examples are all new. Raises IntegrityError, which ends the transaction, if one is not.

    There is no query beforehand: the unique index on ids detects conflicts. Unless the model is `locked`, returns None
    and changes nothing if the model does not exist, has pending examples, or its holdout policy or layout differs from
    what the caller expects, or if an erasure was completed after the one with the id `newest`, with which the batch was
    compared.
    """
    holdout = batch.holdouts(policy)
    last = positions.advance(
        session,
        model_id,
        len(batch),
        kind,
        Counts.of_new(holdout),
        expected=None if locked else Expected(policy, batch.layout_position, newest),
    )
    if last is None:
        return None
    first = last - len(batch) + 1
    bulk.insert(session, model_id, first, batch, holdout)
    release_locks_early(session)  # so that the next writer of the model does not wait for this commit to reach the disk
    return Added(len(batch), 0, first, last)


def add_alone(
    database: Database,
    model_id: int,
    policy: HoldoutPolicy,
    batch: Batch,
    newest: int = -1,
    ingest: Ingest | None = None,
) -> Added | None:
    """`add_new` in a transaction of its own, with its entry of the audit log."""
    audited = {}
    if ingest is not None:
        audited = entries.values_of(ingest.origin, Action.EXAMPLES_ADDED, ingest.model, {"accepted": len(batch)})
    if database.sqlite:
        with database.write() as session:
            added = add_new(session, model_id, policy, batch, newest=newest)
            if added is not None and audited:
                positions.audit(session, audited)
            return added
    expected = Expected(policy, batch.layout_position, newest)
    with database.connect() as connection:
        last = postgres_append.append(connection, model_id, expected, batch, batch.holdouts(policy), audited)
    return None if last is None else Added(len(batch), 0, last - len(batch) + 1, last)


def add_locked(
    session: Session,
    model_id: int,
    policy: HoldoutPolicy,
    batch: Batch,
    kind: ChangeKind = ChangeKind.ADDED,
    returning: Returning = NONE,
) -> Added:
    """Append the new examples of a batch to a locked model; raises Conflict if an id has different content.

    Examples without a label are stored outside the ledger, also those of returning people; they go into quarantine
    when their labels arrive.
    """
    found = compare(session, model_id, policy, batch)
    layout_position, holdout = batch.layout_position, batch.holdouts(policy)
    accepted = len(found.new) + len(found.pending) + len(found.labels)
    if found.pending:
        unlabelled_examples.store(session, model_id, batch.take(found.pending), holdout[found.pending])
    taken: list[tuple[int, int]] = []
    for aside in (False, True):
        labelled = [(i, row) for i, row in found.labels if returning.splits_off(i) == aside]
        if labelled:
            y = batch.y[[i for i, _ in labelled]]
            taken.append(labels.apply(session, model_id, [row for _, row in labelled], y, layout_position, aside))
        new = [i for i in found.new if returning.splits_off(i) == aside]
        if new and aside:
            taken.append(store_aside(session, model_id, batch.take(new), holdout[new]))
        elif new:
            added = add_new(session, model_id, policy, batch.take(new), kind, locked=True)
            assert added is not None, "the model is locked"
            taken.append((added.first_position or 0, added.last_position or 0))
    returned = [i for i in (*found.new, *found.pending, *(i for i, _ in found.labels)) if i in returning.indices]
    quarantined = len(returned) - len(returning.indices.intersection(found.pending)) if returning.quarantined else 0
    report(session, model_id, len(returned), quarantined)
    first, last = (taken[0][0], taken[-1][1]) if taken else (None, None)
    return Added(accepted, len(batch) - accepted, first, last, quarantined)


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
    texts = [None] * len(batch) if batch.unseen is None else batch.unseen
    content_columns = (Example.x, Example.unseen, Example.y, Example.subject, Example.weight, Example.holdout)
    columns = (Example.id, Example.position, *content_columns)
    ids = batch.ids.to_pylist()
    # an example in quarantine counts as present: sent again, it must not slip past the decision about it
    in_force = look_up_in_force(session, model_id, Example.id, ids, columns, quarantined=True)
    layout = layout_at(session, model_id, batch.layout_position)
    seen: dict[str, tuple[Any, ...]] = {}
    for id_, position, x, unseen, y, subject, weight, held_out in in_force:
        y, x, unseen = layout.content(position, y, x, unseen)
        seen[id_] = (y, x, unseen, subject, 1.0 if weight is None else weight, held_out)
    waiting = unlabelled_examples.find(session, model_id, ids)
    found = Compared([], [], [])
    weights = batch.weights_or([None] * len(batch))
    contents = zip(batch.features, texts, batch.subjects, weights, batch.splits, strict=True)
    holdout = batch.holdouts(policy).tolist()
    for i, (id_, y, content) in enumerate(zip(ids, batch.y.tolist(), contents, strict=True)):
        labelled, before, row = not math.isnan(y), seen.get(id_), waiting.get(id_)
        if before is not None:
            if not is_same(before[1:], content) or (labelled and before[0] != y):
                raise conflict(i)
        elif row is None or (row.restricted and labelled):
            seen[id_] = (y, *content[:-1], holdout[i])
            (found.new if labelled else found.pending).append(i)
        elif not is_same(unlabelled_examples.content_of(row, layout), content):
            raise conflict(i)
        elif labelled:
            seen[id_] = (y, *content[:-1], row.holdout)
            found.labels.append((i, row))
    return found


def is_same(before: tuple[Any, ...], content: tuple[Any, ...]) -> bool:
    """Whether an example has the same input, subject, weight and, where one is given, split as before."""
    *earlier, held_out = before
    *given, split = content
    return earlier == given and split in (None, held_out)


def conflict(i: int) -> Conflict:
    return Conflict.at(("examples", i), "example_conflict", "another example with this id has different content")
