"""What is asked of the database about events that MLflow has not been told of."""

from __future__ import annotations

from sqlalchemy import select
from sqlalchemy.orm import Session

from core.tables.tracking import TrackingEvent


def next_event(session: Session, after: int = 0, model: str | None = None) -> TrackingEvent | None:
    """The first event of an id above one; of a model, if one is named."""
    later = select(TrackingEvent).where(TrackingEvent.id > after).order_by(TrackingEvent.id).limit(1)
    return session.scalar(later if model is None else later.where(TrackingEvent.model == model))
