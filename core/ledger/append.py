"""Writing the ledger. Positions are handed out under the lock on the model's row, in the caller's transaction."""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import repeat
from typing import Any, TypeVar

from sqlalchemy import delete, func, select, update
from sqlalchemy.exc import IntegrityError
from sqlalchemy.orm import InstrumentedAttribute, Session

from core.errors import Conflict
from core.ledger import storage
from core.ledger.batch import Batch
from core.ledger.tables import Change, ChangeKind, Example, Removal
from core.models.table import Model

FEW = 5_000
"""Values in one IN (...): far below what either database refuses."""

T = TypeVar("T")


@dataclass(frozen=True)
class Added:
    """What came of a batch."""

    accepted: int
    duplicates: int
    first_position: int | None
    last_position: int | None


@dataclass(frozen=True)
class Removed:
    """What came of a removal: how many examples, and which names were unknown."""

    id: str
    count: int
    unknown: list[str]
    position: int


def add(session: Session, model: Model, batch: Batch) -> Added:
    """Append the examples of a batch that are not in force yet; Conflict if one is with other content."""
    if len(set(batch.ids)) == len(batch):
        # most batches are new from end to end: the database's own unique index tells
        try:
            with session.begin_nested():
                return append(session, model, batch)
        except IntegrityError:
            session.refresh(model)
    fresh = unknown(session, model, batch)
    if not fresh:
        return Added(0, len(batch), None, None)
    added = append(session, model, batch.take(fresh))
    return replace(added, duplicates=len(batch) - len(fresh))


def append(session: Session, model: Model, batch: Batch) -> Added:
    """Store the examples under the next positions."""
    holdout = batch.holdouts(model.policy["holdout"])
    positions = range(model.head + 1, model.head + 1 + len(batch))
    columns = (repeat(model.id, len(batch)), positions, holdout, batch.y.tolist(), batch.ids, batch.subjects)
    storage.insert(session, zip(*columns, batch.features(), strict=True))
    first = record(session, model, ChangeKind.ADDED, len(batch))
    held = sum(holdout)
    model.holdout_count += held
    model.train_count += len(batch) - held
    return Added(len(batch), 0, first, model.head)


def unknown(session: Session, model: Model, batch: Batch) -> list[int]:
    """Which examples are neither in force nor earlier in the batch; the others must say the same again."""
    columns = (Example.id, Example.x, Example.y, Example.subject, Example.holdout)
    seen: dict[str, tuple[Any, ...]] = {}
    for ids in few(batch.ids):
        in_force = (Example.model_id == model.id, Example.removed.is_(None), Example.id.in_(ids))
        seen |= {row[0]: tuple(row[1:]) for row in session.execute(select(*columns).where(*in_force))}
    fresh = []
    contents = zip(batch.features(), batch.y.tolist(), batch.subjects, batch.splits, strict=True)
    for i, (id_, content) in enumerate(zip(batch.ids, contents, strict=True)):
        before = seen.get(id_)
        if before is None:
            seen[id_] = content
            fresh.append(i)
        elif before[:3] != content[:3] or (None not in (before[3], content[3]) and before[3] != content[3]):
            raise Conflict.at(("examples", i), "example_conflict", "the id is taken by an example with other content")
    return fresh


def remove(
    session: Session, model: Model, column: InstrumentedAttribute[Any], names: Sequence[str], stored: Sequence[Any]
) -> Removed:
    """Take the examples out of force whose `column` (id or subject) is among `stored`, the stored forms of `names`."""
    found: set[Any] = set()
    removed = held = 0
    for values in few(list(dict.fromkeys(stored))):
        chosen = (Example.model_id == model.id, Example.removed.is_(None), column.in_(values))
        rank = func.row_number().over(order_by=Example.position).label("rank")
        ranked = select(Example.position, rank).where(*chosen).subquery()
        taken = session.execute(
            update(Example)
            .where(Example.model_id == model.id, Example.position == ranked.c.position)
            .values(removed=model.head + removed + ranked.c.rank)
            .returning(column, Example.holdout),
            execution_options={"synchronize_session": False},
        ).all()
        found.update(row[0] for row in taken)
        removed += len(taken)
        held += sum(row[1] for row in taken)
    if removed:
        record(session, model, ChangeKind.REMOVED, removed)
        model.holdout_count -= held
        model.train_count -= removed - held
        model.removed_count += removed
    missing = list(dict.fromkeys(name for name, value in zip(names, stored, strict=True) if value not in found))
    removal = Removal(
        id=str(uuid.uuid4()), model_id=model.id, removed=removed, unknown=len(missing), position=model.head
    )
    session.add(removal)
    return Removed(removal.id, removed, missing, model.head)


def change(session: Session, model: Model, kind: ChangeKind, value: dict[str, Any]) -> int:
    """Record a new regularizer or architecture; its position."""
    return record(session, model, kind, 1, value)


def record(session: Session, model: Model, kind: ChangeKind, size: int, value: dict[str, Any] | None = None) -> int:
    """Take the next `size` positions for one kind of change; the first of them."""
    first, model.head = model.head + 1, model.head + size
    session.add(Change(model_id=model.id, first=first, last=model.head, kind=kind, value=value))
    return first


def forget_everything(session: Session, model: Model) -> None:
    """Delete the examples of a model; the rest of what it owns goes with its row."""
    session.execute(delete(Example).where(Example.model_id == model.id))


def few(values: Sequence[T]) -> Iterator[Sequence[T]]:
    for i in range(0, len(values), FEW):
        yield values[i : i + FEW]
