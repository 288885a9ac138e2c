"""Writing the ledger. Positions are handed out under the lock on the model's row, in the caller's transaction."""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import numpy as np
import pyarrow as pa
from sqlalchemy import LargeBinary, Text, bindparam, cast, delete, func, select, update
from sqlalchemy.dialects.postgresql import ARRAY
from sqlalchemy.orm import InstrumentedAttribute, Session

from core.database import Database, settle_early
from core.errors import Conflict, NotFound
from core.ledger import bulk, postgres
from core.ledger.batch import Batch
from core.tables.ledger import ChangeKind, Example, Removal
from core.tables.models import Model

FEW = 5_000
"""Values in one IN (...): far below what either database refuses."""

T = TypeVar("T")


@dataclass(frozen=True)
class Held:
    """What adding examples needs to know of a model whose row is locked."""

    id: int
    policy: dict[str, Any]


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


def lock(session: Session, model_id: int) -> Held:
    """Hold a model that is known already until the end of the transaction, as `catalog.find` does with less haste."""
    share = bulk.share(session, model_id)
    if share is None:
        raise NotFound("model_not_found", "There is no such model.")
    return Held(model_id, {"holdout": share})


def add_new(session: Session, model_id: int, share: float, batch: Batch) -> Added | None:
    """Append a batch that is new from end to end, as most are; IntegrityError, and a lost transaction, if it is not.

    It asks nothing first: the database's own unique index tells. None, and nothing has happened, if the model is gone
    or its holdout share is another.
    """
    holdout = batch.holdouts(share)
    counts = bulk.counts_of(holdout)
    last = bulk.advance(session, model_id, len(batch), ChangeKind.ADDED.value, counts, share=share)
    if last is None:
        return None
    first = last - len(batch) + 1
    bulk.insert(session, model_id, first, batch, holdout)
    settle_early(session)  # the next writer of the model need not wait for the disk, too
    return Added(len(batch), 0, first, last)


def add_alone(database: Database, model_id: int, share: float, batch: Batch) -> Added | None:
    """`add_new` as a transaction of its own."""
    if database.sqlite:
        with database.write() as session:
            return add_new(session, model_id, share, batch)
    with database.alone() as connection:
        last = postgres.append(connection, model_id, share, batch, batch.holdouts(share))
    return None if last is None else Added(len(batch), 0, last - len(batch) + 1, last)


def add(session: Session, model: Model | Held, batch: Batch) -> Added:
    """Append the examples of a batch that are not in force yet; Conflict if one is with other content."""
    fresh = unknown(session, model, batch)
    if not fresh:
        return Added(0, len(batch), None, None)
    session.flush()
    added = add_new(session, model.id, model.policy["holdout"], batch.take(fresh))
    assert added is not None, "the model is locked"
    if isinstance(model, Model):
        session.refresh(model)
    return replace(added, duplicates=len(batch) - len(fresh))


def unknown(session: Session, model: Model | Held, batch: Batch) -> list[int]:
    """Which examples are neither in force nor earlier in the batch; the others must say the same again."""
    columns = (Example.id, Example.x, Example.y, Example.subject, Example.holdout)
    ids = batch.ids.to_pylist()
    found = in_force(session, model, Example.id, ids, columns)
    seen: dict[str, tuple[Any, ...]] = {row[0]: tuple(row[1:]) for row in found}
    fresh = []
    contents = zip(batch.features, batch.y.tolist(), batch.subjects, batch.splits, strict=True)
    holdout = batch.holdouts(model.policy["holdout"]).tolist()
    for i, (id_, content) in enumerate(zip(ids, contents, strict=True)):
        before = seen.get(id_)
        if before is None:
            seen[id_] = (*content[:3], holdout[i])
            fresh.append(i)
        elif before[:3] != content[:3] or (None not in (before[3], content[3]) and before[3] != content[3]):
            raise Conflict.at(("examples", i), "example_conflict", "the id is taken by an example with other content")
    return fresh


def remove(
    session: Session, model: Model, column: InstrumentedAttribute[Any], names: Sequence[str], stored: Sequence[Any]
) -> Removed:
    """Take the examples out of force whose `column` (id or subject) is among `stored`, the stored forms of `names`."""
    rows = sorted(
        in_force(session, model, column, list(dict.fromkeys(stored)), (Example.position, Example.holdout, column))
    )
    if rows:
        session.connection().execute(
            update(Example)
            .where(Example.model_id == model.id, Example.position == bindparam("at"))
            .values(removed=bindparam("gone")),
            [{"at": row[0], "gone": model.head + i} for i, row in enumerate(rows, 1)],
        )
        held = sum(row[1] for row in rows)
        counts = {"train": held - len(rows), "holdout": -held, "removed": len(rows)}
        record(session, model, ChangeKind.REMOVED, len(rows), **counts)
    found = {row[2] for row in rows}
    missing = list(dict.fromkeys(name for name, value in zip(names, stored, strict=True) if value not in found))
    removal = Removal(
        id=str(uuid.uuid4()), model_id=model.id, removed=len(rows), unknown=len(missing), position=model.head
    )
    session.add(removal)
    return Removed(removal.id, len(rows), missing, model.head)


def restore(session: Session, model: Model, positions: Sequence[int]) -> int:
    """Bring removed examples back into force; how many.

    What is in force at a position never changes, so each comes back as a change at a new position. One whose id was
    given to another example meanwhile stays out.
    """
    count, dtype = 0, np.dtype(model.spec["input"].get("dtype", "float32"))
    for some in few(sorted(positions)):
        removed = (Example.removed.is_not(None), func.length(Example.x) > 0)
        found = select(Example).where(Example.model_id == model.id, Example.position.in_(some), *removed)
        rows = {row.id: row for row in session.scalars(found.order_by(Example.position))}
        for (id_,) in list(in_force(session, model, Example.id, list(rows), (Example.id,))):
            del rows[id_]
        if rows:
            back = list(rows.values())
            x = np.frombuffer(b"".join(row.x for row in back), dtype).reshape(len(back), -1)
            y, splits = np.array([row.y for row in back]), [row.holdout for row in back]
            batch = Batch(pa.array(list(rows), pa.string()), [row.subject for row in back], x, y, splits)
            count += add(session, model, batch).accepted
    return count


def in_force(
    session: Session,
    model: Model | Held,
    key: InstrumentedAttribute[Any],
    values: Sequence[Any],
    columns: Sequence[InstrumentedAttribute[Any]],
) -> Iterator[Any]:
    """Columns of the examples in force whose `key` is among `values`, each found by the key's own index."""
    query = select(*columns).where(Example.model_id == model.id, Example.removed.is_(None))
    postgresql = session.get_bind().dialect.name == "postgresql"
    for some in few(values):
        if not postgresql:
            yield from session.execute(query.where(key.in_(some)))
            continue
        # one lookup for each value (OFFSET 0 keeps it so): of a table that it has no statistics of yet,
        # PostgreSQL would rather read all
        kind = Text() if key is Example.id else LargeBinary()
        wanted = func.unnest(cast(list(some), ARRAY(kind))).table_valued("value").render_derived("wanted")
        looked_up = query.where(key == wanted.c.value).offset(0).lateral()
        yield from session.execute(select(looked_up).select_from(wanted, looked_up))


def change(session: Session, model: Model, kind: ChangeKind, value: dict[str, Any]) -> int:
    """Record a new regularizer or architecture; its position."""
    return record(session, model, kind, 1, value)


def record(
    session: Session,
    model: Model,
    kind: ChangeKind,
    size: int,
    value: dict[str, Any] | None = None,
    train: int = 0,
    holdout: int = 0,
    removed: int = 0,
) -> int:
    """Take the next `size` positions for one kind of change, and count what is in force; the last of them."""
    counts = {"train": train, "holdout": holdout, "removed": removed}
    session.flush()
    last = bulk.advance(session, model.id, size, kind.value, counts, value)
    assert last is not None, "the model is locked"
    session.refresh(model)
    return last


def forget_everything(session: Session, model: Model) -> None:
    """Delete the examples of a model; the rest of what it owns goes with its row."""
    session.execute(delete(Example).where(Example.model_id == model.id))


def few(values: Sequence[T], most: int = FEW) -> Iterator[Sequence[T]]:
    """The values, `most` or `FEW` at a time."""
    size = min(FEW, most)
    for i in range(0, len(values), size):
        yield values[i : i + size]
