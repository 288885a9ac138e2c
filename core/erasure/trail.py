"""The audit trail of an erasure: who did what about it, by the id of their key, and when."""

from __future__ import annotations

from datetime import datetime

from sqlalchemy import func, select
from sqlalchemy.orm import Session

from core.database import utc_text
from core.tables.erasures import Erasure, Event, EventKind


def note(session: Session, erasure: Erasure, kind: EventKind, by: str) -> None:
    """Note what the holder of a key does, in the transaction that does it."""
    session.add(Event(erasure_id=erasure.id, kind=kind, by=by))
    session.flush()


def last(session: Session, erasure: Erasure, kind: EventKind) -> datetime | None:
    """When something was done last."""
    return session.scalar(select(func.max(Event.at)).where(Event.erasure_id == erasure.id, Event.kind == kind))


def events_of(session: Session, erasure: Erasure) -> list[Event]:
    """All that was done, in order."""
    return list(session.scalars(select(Event).where(Event.erasure_id == erasure.id).order_by(Event.id)))


def shown(session: Session, erasure: Erasure) -> list[dict[str, str]]:
    """The same as a receipt tells it."""
    events = events_of(session, erasure)
    return [{"what": event.kind.value, "by": event.by, "at": utc_text(event.at)} for event in events]
