"""Rows of the ledger by their keys or page by page: examples in force, and removals. `passes` reads all of them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import datetime
from typing import Any, NamedTuple, TypeVar

from sqlalchemy import LargeBinary, Text, cast, func, select
from sqlalchemy.dialects.postgresql import ARRAY
from sqlalchemy.orm import InstrumentedAttribute, Session

from core.errors import NotFound
from core.tables.ledger import Change, Example, Removal
from core.tables.models import Model

VALUES_PER_QUERY = 5_000
"""Values in one IN (...): far below the limits of both databases."""

T = TypeVar("T")


class StoredExample(NamedTuple):
    """What callers may see of an example in force."""

    id: str
    x: bytes
    y: float
    weight: float | None
    holdout: bool
    position: int


COLUMNS = (Example.id, Example.x, Example.y, Example.weight, Example.holdout, Example.position)


def find_example(session: Session, model: Model, id: str) -> StoredExample:
    """An example in force by the caller's id."""
    query = select(*COLUMNS).where(Example.model_id == model.id, Example.removed.is_(None), Example.id == id)
    # text that cannot be an id is not sent: PostgreSQL would refuse some of it
    row = session.execute(query).first() if id.isprintable() else None
    if row is None:
        raise NotFound("example_not_found", "There is no such example in force.")
    return StoredExample(*row)


def page_examples(session: Session, model: Model, after: int, limit: int) -> list[StoredExample]:
    """The next examples in force after a position."""
    in_force = (Example.model_id == model.id, Example.removed.is_(None), Example.position > after)
    rows = session.execute(select(*COLUMNS).where(*in_force).order_by(Example.position).limit(limit))
    return [StoredExample(*row) for row in rows]


def stored_at(session: Session, model_id: int, position: int) -> datetime | None:
    """When the change at a position was recorded."""
    change = select(Change.created_at).where(Change.model_id == model_id, Change.last >= position)
    return session.scalar(change.order_by(Change.last).limit(1))


def find_removal(session: Session, model: Model, id: str) -> Removal:
    removal = session.get(Removal, id) if id.isprintable() else None
    if removal is None or removal.model_id != model.id:
        raise NotFound("removal_not_found", "There is no such removal.")
    return removal


def look_up_in_force(
    session: Session,
    model_id: int,
    key: InstrumentedAttribute[Any],
    values: Sequence[Any],
    columns: Sequence[InstrumentedAttribute[Any]],
) -> Iterator[Any]:
    """Columns of the examples in force whose `key` is among `values`, each found by the key's own index."""
    query = select(*columns).where(Example.model_id == model_id, Example.removed.is_(None))
    postgresql = session.get_bind().dialect.name == "postgresql"
    for some in batched(values):
        if not postgresql:
            yield from session.execute(query.where(key.in_(some)))
            continue
        # one lookup for each value (OFFSET 0 keeps it so): of a table that it has no statistics of yet,
        # PostgreSQL would rather read all
        kind = Text() if key is Example.id else LargeBinary()
        wanted = func.unnest(cast(list(some), ARRAY(kind))).table_valued("value").render_derived("wanted")
        looked_up = query.where(key == wanted.c.value).offset(0).lateral()
        yield from session.execute(select(looked_up).select_from(wanted, looked_up))


def batched(values: Sequence[T], size: int = VALUES_PER_QUERY) -> Iterator[Sequence[T]]:
    """The values, `size` or `VALUES_PER_QUERY` at a time, whichever is less."""
    size = min(VALUES_PER_QUERY, size)
    for i in range(0, len(values), size):
        yield values[i : i + size]
