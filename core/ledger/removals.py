"""Taking examples out of force, and back, under the lock on the model's row and in the caller's transaction."""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
from sqlalchemy import bindparam, delete, select, update
from sqlalchemy.orm import InstrumentedAttribute, Session

from core.ledger import positions
from core.ledger.additions import add_locked
from core.ledger.batch import Batch
from core.ledger.positions import Counts
from core.ledger.queries import batched, look_up_in_force
from core.ledger.specs import layout_at
from core.models.policy import policy_of
from core.tables.ledger import HAS_CONTENT, ChangeKind, Example, Removal
from core.tables.models import Model


@dataclass(frozen=True)
class Removed:
    """The result of a removal: its row, and which names were unknown."""

    removal: Removal
    unknown: list[str]


def remove(
    session: Session, model: Model, column: InstrumentedAttribute[Any], names: Sequence[str], stored: Sequence[Any]
) -> Removed:
    """Take the examples out of force whose `column` (id or subject) is among `stored`, the stored forms of `names`."""
    columns = (Example.position, Example.holdout, column)
    rows = sorted(look_up_in_force(session, model.id, column, list(dict.fromkeys(stored)), columns))
    take_out(session, model, rows)
    found = {row[2] for row in rows}
    missing = list(dict.fromkeys(name for name, value in zip(names, stored, strict=True) if value not in found))
    removal = Removal(
        id=str(uuid.uuid4()), model_id=model.id, removed=len(rows), unknown=len(missing), position=model.head
    )
    session.add(removal)
    return Removed(removal, missing)


def remove_span(session: Session, model: Model, after: int, until: int) -> int:
    """Take the examples at a range of positions out of force; returns how many."""
    in_force = (Example.model_id == model.id, Example.removed.is_(None))
    span = (Example.position > after, Example.position <= until)
    rows = session.execute(select(Example.position, Example.holdout).where(*in_force, *span)).all()
    take_out(session, model, sorted(rows))
    return len(rows)


def take_out(session: Session, model: Model, rows: Sequence[Any]) -> None:
    """Take rows, each of which begins with its position and whether it is held out, out of force, in their order."""
    if rows:
        mark_removed(session, model, [row[0] for row in rows])
        held_out = sum(row[1] for row in rows)
        counts = Counts(train=held_out - len(rows), holdout=-held_out, removed=len(rows))
        positions.take(session, model, ChangeKind.REMOVED, len(rows), counts)


def mark_removed(session: Session, model: Model, positions: Sequence[int]) -> int:
    """Have the examples at some positions go at the model's next positions, which are yet to be taken; the first."""
    session.connection().execute(
        update(Example)
        .where(Example.model_id == model.id, Example.position == bindparam("at"))
        .values(removed=bindparam("gone")),
        [{"at": position, "gone": model.head + i} for i, position in enumerate(positions, 1)],
    )
    return model.head + 1


def restore(session: Session, model: Model, removed: Sequence[int]) -> list[int]:
    """Bring the removed examples of some positions back into force; those of them that came back.

    What is in force at a position never changes, so each comes back as a change at a new position. One whose id was
    given to another example meanwhile stays out.
    """
    returned: list[int] = []
    layout = layout_at(session, model.id, model.head)
    for some in batched(sorted(removed)):
        out = (Example.removed.is_not(None), HAS_CONTENT)
        found = select(Example).where(Example.model_id == model.id, Example.position.in_(some), *out)
        rows = {row.id: row for row in session.scalars(found.order_by(Example.position))}
        for (id_,) in list(look_up_in_force(session, model.id, Example.id, list(rows), (Example.id,))):
            del rows[id_]
        if rows:
            back = list(rows.values())
            at, given = np.array([row.position for row in back]), np.array([row.y for row in back])
            y, x = layout.convert(at, given, [row.x for row in back])
            ids, subjects = pa.array(list(rows), pa.string()), [row.subject for row in back]
            weights = np.array([1.0 if row.weight is None else row.weight for row in back])
            batch = Batch(ids, subjects, x, y, [row.holdout for row in back], model.layout, weights)
            session.flush()
            add_locked(session, model.id, policy_of(model).holdout, batch)
            returned += [row.position for row in back]
    if returned:
        session.refresh(model)
    return returned


def delete_examples(session: Session, model: Model) -> None:
    """Delete all examples of a model; the rest of what it owns goes with its row."""
    session.execute(delete(Example).where(Example.model_id == model.id))
