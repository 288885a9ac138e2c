"""Quarantine: examples of a batch whose version was rejected, out of force until a person decides. (Those of returning
people are quarantined as well: see `returning_subjects`.)

They leave force at a ledger position, as removed examples do, and keep their content. Accepting the batch brings them
back at new positions; discarding it makes them ordinary removed examples. The caller holds the lock on the model's row.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from sqlalchemy import ColumnElement, exists, func, or_, select, update
from sqlalchemy.orm import Session

from core.database import rows_changed
from core.ledger.queries import batched
from core.ledger.removals import restore, take_out_matching
from core.tables.ledger import HAS_CONTENT, RETURNED, Change, ChangeKind, Example
from core.tables.models import Model


def quarantine(session: Session, model: Model, since: int, until: int, version: int) -> int:
    """Take the new examples after `since` and up to `until` out of force; returns how many.

    Corrections stay: the example that a correction replaced is out of force, and there would be none. So do examples
    that returned into force, for example because a person accepted them.

    Parameters
    ----------
    version
        Number of the rejected version that learnt them.
    """
    span = Example.position.between(since + 1, until)
    return take_out_matching(session, model, span & is_new(model.id), version)


def is_new(model_id: int) -> ColumnElement[bool]:
    """Condition on examples: neither a correction nor returned into force."""
    arrival = (Change.model_id == model_id, Change.first <= Example.position, Change.last >= Example.position)
    return exists().where(*arrival, Change.kind.in_((ChangeKind.ADDED, ChangeKind.LABELLED)))


def is_quarantined(model: Model, version: int | None = None) -> ColumnElement[bool]:
    """Condition on examples: in quarantine, because of this version or of any."""
    ours = Example.model_id == model.id
    return ours & (Example.quarantine.is_not(None) if version is None else Example.quarantine == version)


def accept(
    session: Session,
    model: Model,
    version: int,
    excluded: Collection[bytes] = (),
    chosen: Collection[int] | None = None,
) -> int:
    """Put the examples of a rejected version back into force, at new positions; returns how many.

    Parameters
    ----------
    excluded
        Hashes of subjects whose erasure is requested: their examples stay where they are.
    chosen
        Positions of the examples; default: all.
    """
    found = select(Example.position).where(is_quarantined(model, version), HAS_CONTENT)
    if excluded:
        found = found.where(or_(Example.subject.is_(None), Example.subject.not_in(excluded)))
    rows = [position for position in session.scalars(found) if chosen is None or position in chosen]
    release(session, model, rows)
    count = len(restore(session, model, rows))
    model.removed_count -= count  # they are in force again
    session.flush()
    return count


def discard(session: Session, model: Model, version: int) -> int:
    """Make the examples of a rejected version ordinary removed examples; returns how many."""
    return release_matching(session, model, Example.quarantine == version)


def release(session: Session, model: Model, rows: Sequence[int]) -> None:
    """End the quarantine of the examples at some positions; they stay out of force."""
    for some in batched(rows):
        release_matching(session, model, Example.position.in_(some))


def release_matching(session: Session, model: Model, selected: ColumnElement[bool]) -> int:
    """End the quarantine of the examples that satisfy a condition; returns how many. They stay out of force."""
    released = rows_changed(session, update(Example).where(is_quarantined(model), selected).values(quarantine=None))
    model.quarantined_count -= released
    model.removed_count += released
    session.flush()
    return released


def quarantined_versions(session: Session, model: Model) -> dict[int, int]:
    """How many examples are in quarantine, by the number of the rejected version."""
    if not model.quarantined_count:
        return {}
    counts = select(Example.quarantine, func.count()).where(is_quarantined(model)).group_by(Example.quarantine)
    return {number: count for number, count in session.execute(counts) if number is not None and number != RETURNED}


def count_returned(session: Session, model: Model) -> int:
    """How many examples are in quarantine because they are about people whose data was erased."""
    return session.scalar(select(func.count()).where(is_quarantined(model, RETURNED))) or 0
