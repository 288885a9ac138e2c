"""Removing and restoring examples, under the lock on the model's row and in the caller's transaction."""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pyarrow as pa
from sqlalchemy import ColumnElement, Integer, bindparam, cast, delete, func, select, text, update
from sqlalchemy.orm import InstrumentedAttribute, Session

from core.ledger import labels, positions, unlabelled_examples
from core.ledger.additions import add_locked
from core.ledger.batch import Batch
from core.ledger.positions import Counts
from core.ledger.queries import batched, look_up_in_force
from core.ledger.spec_history import layout_at
from core.models.policy import policy_of
from core.tables.ledger import HAS_CONTENT, ChangeKind, Encoding, Example, RecordedPrediction, Removal
from core.tables.models import Model


@dataclass(frozen=True)
class Removed:
    """The result of a removal: its row, the names that were unknown, and whether examples in force were removed."""

    removal: Removal
    unknown: list[str]
    changed: bool


def remove(
    session: Session, model: Model, column: InstrumentedAttribute[Any], names: Sequence[str], stored: Sequence[Any]
) -> Removed:
    """Remove the examples whose `column` (id or subject) is among `stored`, the stored forms of `names`."""
    columns = (Example.position, Example.holdout, column)
    rows = sorted(look_up_in_force(session, model.id, column, list(dict.fromkeys(stored)), columns))
    take_out(session, model, rows)
    found = {row[2] for row in rows}
    missing = list(dict.fromkeys(name for name, value in zip(names, stored, strict=True) if value not in found))
    return record(session, model, len(rows), missing, bool(rows))


def record(session: Session, model: Model, removed: int, unknown: list[str], changed: bool) -> Removed:
    """Store a removal that was carried out; `changed` is whether examples in force were removed."""
    counts = {"removed": removed, "unknown": len(unknown)}
    removal = Removal(id=str(uuid.uuid4()), model_id=model.id, position=model.head, **counts)
    session.add(removal)
    return Removed(removal, unknown, changed)


def take_out_matching(
    session: Session, model: Model, selected: ColumnElement[bool], quarantine: int | None = None
) -> int:
    """Take the examples in force that satisfy a condition out of force, in one statement; returns how many.

    Parameters
    ----------
    quarantine
        Number of the rejected version that learnt them, if they are quarantined instead of removed.
    """
    chosen = (Example.model_id == model.id, Example.removed.is_(None), selected)
    held_out_sum = func.coalesce(func.sum(cast(Example.holdout, Integer)), 0)
    count, held_out = session.execute(select(func.count(), held_out_sum).where(*chosen)).one()
    if not count:
        return 0
    if quarantine is None:
        gone = RecordedPrediction.position.in_(select(Example.position).where(*chosen))
        predictions = delete(RecordedPrediction).where(RecordedPrediction.model_id == model.id, gone)
        session.connection().execute(predictions)
    number = func.row_number().over(order_by=Example.position).label("number")
    numbered = select(Example.position, number).where(*chosen).subquery()
    there = (Example.model_id == model.id, Example.position == numbered.c.position)
    values = {"removed": model.head + numbered.c.number, "quarantine": quarantine}
    with without_nested_loops(session):
        session.connection().execute(update(Example).where(*there).values(values))
    kind, counted = (ChangeKind.REMOVED, "removed") if quarantine is None else (ChangeKind.QUARANTINED, "quarantined")
    counts = Counts(train=held_out - count, holdout=-held_out, **{counted: count})
    positions.take(session, model, kind, count, counts)
    return int(count)


@contextmanager
def without_nested_loops(session: Session) -> Iterator[None]:
    """Keep PostgreSQL from joining a table with itself row by row.

    Right after a large load the statistics of the table are missing, and the planner takes a join of 100 000 rows with
    themselves for one of a single row: minutes instead of a second.
    """
    postgresql = session.get_bind().dialect.name == "postgresql"
    if postgresql:
        session.execute(text("SET LOCAL enable_nestloop = off"))
    yield
    if postgresql:  # after an error the transaction ends, and with it the setting
        session.execute(text("SET LOCAL enable_nestloop = on"))


def take_out(session: Session, model: Model, rows: Sequence[Any]) -> None:
    """Remove rows, in the given order. Each row starts with its position and whether it is in the holdout."""
    if rows:
        mark_removed(session, model, [row[0] for row in rows])
        labels.forget_predictions(session, model.id, [row[0] for row in rows])
        held_out = sum(row[1] for row in rows)
        counts = Counts(train=held_out - len(rows), holdout=-held_out, removed=len(rows))
        positions.take(session, model, ChangeKind.REMOVED, len(rows), counts)


def mark_removed(session: Session, model: Model, positions: Sequence[int]) -> int:
    """Mark examples as removed at the model's next positions, which the caller takes afterwards; returns the first."""
    session.connection().execute(
        update(Example)
        .where(Example.model_id == model.id, Example.position == bindparam("at"))
        .values(removed=bindparam("gone")),
        [{"at": position, "gone": model.head + i} for i, position in enumerate(positions, 1)],
    )
    return model.head + 1


def restore(session: Session, model: Model, removed: Sequence[int]) -> list[int]:
    """Restore the removed examples at the given positions; returns the positions of those that were restored.

    The examples in force at a position never change, so each example is added again at a new position. An example whose
    id has been used for another one since is not restored.
    """
    returned: list[int] = []
    layout = layout_at(session, model.id, model.head)
    for some in batched(sorted(removed)):
        restorable = (Example.removed.is_not(None), HAS_CONTENT)
        query = select(Example).where(Example.model_id == model.id, Example.position.in_(some), *restorable)
        rows = {row.id: row for row in session.scalars(query.order_by(Example.position))}
        for (id_,) in list(look_up_in_force(session, model.id, Example.id, list(rows), (Example.id,))):
            del rows[id_]
        for id_ in unlabelled_examples.find(session, model.id, list(rows)):
            del rows[id_]
        if rows:
            back = list(rows.values())
            at, given = np.array([row.position for row in back]), np.array([row.y for row in back])
            y, x, unseen = layout.convert(at, given, [row.x for row in back], [row.unseen for row in back])
            ids, subjects = pa.array(list(rows), pa.string()), [row.subject for row in back]
            weights = np.array([1.0 if row.weight is None else row.weight for row in back])
            batch = Batch(ids, subjects, x, y, [row.holdout for row in back], model.layout_position, weights)
            times, sources = batch.times_or([row.time for row in back]), batch.sources_or([row.source for row in back])
            batch = replace(batch, times=times, sources=sources, unseen=unseen)
            session.flush()
            add_locked(session, model.id, policy_of(model).holdout_draw, batch, ChangeKind.RESTORED)
            returned += [row.position for row in back]
    if returned:
        session.refresh(model)
    return returned


def delete_examples(session: Session, model: Model) -> None:
    """Delete all examples of a model; all other rows that it owns are deleted with its own row."""
    session.execute(delete(Encoding).where(Encoding.model_id == model.id))
    session.execute(delete(Example).where(Example.model_id == model.id))
