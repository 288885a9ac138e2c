"""Queries about unpublished events."""

from sqlalchemy import select
from sqlalchemy.orm import Session

from core.tables.tracking import TrackingEvent


def next_event(session: Session, after: int = 0, model: str | None = None) -> TrackingEvent | None:
    """The first event after an id, of all models or of one."""
    later = select(TrackingEvent).where(TrackingEvent.id > after).order_by(TrackingEvent.id).limit(1)
    return session.scalar(later if model is None else later.where(TrackingEvent.model == model))
