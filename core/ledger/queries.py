"""Single rows and pages of the ledger: examples in force, and removals. `passes` reads all examples."""

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, NamedTuple, TypeVar

from sqlalchemy import ColumnElement, LargeBinary, Text, and_, cast, exists, false, func, or_, select
from sqlalchemy.dialects.postgresql import ARRAY
from sqlalchemy.orm import InstrumentedAttribute, Session

from core.errors import NotFound
from core.paging import invalid_cursor
from core.tables.ledger import Change, ChangeKind, Encoding, Example, PendingExample, Removal
from core.tables.models import Model
from core.tables.versions import Version, VersionState

TAKEN_OUT_OF_FORCE = (ChangeKind.REMOVED, ChangeKind.REPLACED, ChangeKind.QUARANTINED)
VALUES_PER_QUERY = 5_000
"""Values in one IN (...), far below the limits of both databases."""

T = TypeVar("T")


class StoredExample(NamedTuple):
    """The columns of an example in force that callers may see."""

    id: str
    x: bytes
    y: float
    weight: float | None
    holdout: bool
    position: int
    time: datetime | None = None
    source: str | None = None
    unseen: str | None = None


COLUMNS = (
    Example.id,
    Example.x,
    Example.y,
    Example.weight,
    Example.holdout,
    Example.position,
    Example.time,
    Example.source,
    Example.unseen,
)


@dataclass(frozen=True)
class ExampleFilter:
    """Which examples a listing contains."""

    quarantined: bool = False
    """Examples in quarantine instead of those in force."""
    failed_by: str | None = None
    """Key of an encoder: only examples that it could not encode."""
    source: str | None = None
    holdout: bool | None = None
    since: datetime | None = None
    """Only examples whose event time, or time of arrival, is not earlier."""

    @property
    def is_empty(self) -> bool:
        """Whether the source is text that no source can be. It is not sent: PostgreSQL rejects some of it."""
        return self.source is not None and not self.source.isprintable()

    def conditions(self, model: Model) -> list[ColumnElement[bool]]:
        if self.is_empty:
            return [false()]
        in_use = Example.quarantine.is_not(None) if self.quarantined else Example.removed.is_(None)
        found = [Example.model_id == model.id, in_use]
        if self.failed_by is not None:
            failed = (
                Encoding.model_id == model.id,
                Encoding.encoder == self.failed_by,
                func.length(Encoding.data) == 0,
            )
            found.append(Example.position.in_(select(Encoding.position).where(*failed)))
        if self.source is not None:
            found.append(Example.source == self.source)
        if self.holdout is not None:
            found.append(Example.holdout == self.holdout)
        if self.since is not None:
            arrived = (Change.model_id == model.id, Change.last >= Example.position, Change.first <= Example.position)
            recent = exists().where(*arrived, Change.created_at >= self.since)
            found.append(or_(Example.time >= self.since, and_(Example.time.is_(None), recent)))
        return found

    def pending_conditions(self, model: Model) -> list[ColumnElement[bool]]:
        """The same for examples without a label."""
        if self.is_empty or self.quarantined or self.failed_by is not None:
            return [false()]
        row = PendingExample
        found = [row.model_id == model.id, row.restricted.is_(False)]
        if self.source is not None:
            found.append(row.source == self.source)
        if self.holdout is not None:
            found.append(row.holdout == self.holdout)
        if self.since is not None:
            found.append(func.coalesce(row.time, row.created_at) >= self.since)
        return found


ALL_IN_FORCE = ExampleFilter()


def find_example(session: Session, model: Model, id: str) -> StoredExample:
    """Find an example in force by its id."""
    query = select(*COLUMNS).where(Example.model_id == model.id, Example.removed.is_(None), Example.id == id)
    # text that cannot be an id is not sent: PostgreSQL rejects some of it
    row = session.execute(query).first() if id.isprintable() else None
    if row is None:
        raise NotFound("example_not_found", "No example with this id is in force.")
    return StoredExample(*row)


def page_examples(
    session: Session, model: Model, after: int, limit: int, chosen: ExampleFilter = ALL_IN_FORCE
) -> list[StoredExample]:
    """The next examples after a position."""
    query = select(*COLUMNS).where(*chosen.conditions(model), Example.position > after)
    rows = session.execute(query.order_by(Example.position).limit(limit))
    return [StoredExample(*row) for row in rows]


def find_pending(session: Session, model: Model, id: str) -> PendingExample | None:
    """Find an example without a label by its id, unless an erasure request restricts it."""
    row = session.get(PendingExample, (model.id, id)) if id.isprintable() else None
    return None if row is None or row.restricted else row


def page_pending(
    session: Session, model: Model, after: str, limit: int, chosen: ExampleFilter = ALL_IN_FORCE
) -> Sequence[PendingExample]:
    """The next examples without a label after an id."""
    if not after.isprintable():
        raise invalid_cursor()
    query = select(PendingExample).where(*chosen.pending_conditions(model), PendingExample.id > after)
    return session.scalars(query.order_by(PendingExample.id).limit(limit)).all()


def stored_at(session: Session, model_id: int, position: int) -> datetime | None:
    """When the change at a position was recorded."""
    change = select(Change.created_at).where(Change.model_id == model_id, Change.last >= position)
    return session.scalar(change.order_by(Change.last).limit(1))


def find_removal(session: Session, model: Model, id: str) -> Removal:
    removal = session.get(Removal, id) if id.isprintable() else None
    if removal is None or removal.model_id != model.id:
        raise NotFound("removal_not_found", "This removal does not exist.")
    return removal


def find_purged(session: Session, model_id: int, numbers: Collection[int | None]) -> set[int]:
    """Which versions an erasure has purged, or keeps out of use until it does: nothing they predict may be stored."""
    gone = or_(Version.state == VersionState.PURGED, Version.purge_at.is_not(None))
    ours = (Version.model_id == model_id, Version.number.in_([number for number in numbers if number is not None]))
    return set(session.scalars(select(Version.number).where(*ours, gone)))


def look_up_in_force(
    session: Session,
    model_id: int,
    key: InstrumentedAttribute[Any],
    values: Sequence[Any],
    columns: Sequence[InstrumentedAttribute[Any]],
    quarantined: bool = False,
) -> Iterator[Any]:
    """Columns of the examples in force whose `key` is among `values`, each looked up in the index of the key.

    With `quarantined`, examples in quarantine are included.
    """
    in_use: ColumnElement[bool] = Example.removed.is_(None)
    if quarantined:
        in_use = or_(in_use, Example.quarantine.is_not(None))
    query = select(*columns).where(Example.model_id == model_id, in_use)
    postgresql = session.get_bind().dialect.name == "postgresql"
    for some in batched(values):
        if not postgresql:
            yield from session.execute(query.where(key.in_(some)))
            continue
        # OFFSET 0 forces one index lookup per value: without statistics, PostgreSQL would scan the whole table
        kind = Text() if key is Example.id else LargeBinary()
        wanted = func.unnest(cast(list(some), ARRAY(kind))).table_valued("value").render_derived("wanted")
        looked_up = query.where(key == wanted.c.value).offset(0).lateral()
        yield from session.execute(select(looked_up).select_from(wanted, looked_up))


def has_taken_out(session: Session, model: Model, since: int) -> bool:
    """Whether a change after a position has taken examples out of force."""
    later = (Change.model_id == model.id, Change.last > since, Change.kind.in_(TAKEN_OUT_OF_FORCE))
    return session.scalar(select(Change.last).where(*later).limit(1)) is not None


def batched(values: Sequence[T], size: int = VALUES_PER_QUERY) -> Iterator[Sequence[T]]:
    """Batches of at most `size` and at most `VALUES_PER_QUERY` values."""
    size = min(VALUES_PER_QUERY, size)
    for i in range(0, len(values), size):
        yield values[i : i + size]
