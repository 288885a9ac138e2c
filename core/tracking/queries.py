"""What is asked of the database about events that MLflow has not been told of."""

from __future__ import annotations

from sqlalchemy import select
from sqlalchemy.orm import Session

from core.tables.tracking import TrackingEvent


def next_event(session: Session, after: int = 0) -> TrackingEvent | None:
    """The first event of an id above one."""
    return session.scalar(select(TrackingEvent).where(TrackingEvent.id > after).order_by(TrackingEvent.id).limit(1))
