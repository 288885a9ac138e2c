"""Queries about unpublished events."""

from datetime import datetime

from sqlalchemy import func, select
from sqlalchemy.orm import Session

from core.database import Database
from core.tables.jobs import Job
from core.tables.tracking import TrackingEvent, TrackingEventKind


def next_event(
    session: Session, after: int = 0, model: str | None = None, job: str | None = None, deletions: bool = False
) -> TrackingEvent | None:
    """The first event after an id: of all models or of one, of one job, or only deletions of models."""
    later = select(TrackingEvent).where(TrackingEvent.id > after).order_by(TrackingEvent.id).limit(1)
    if model is not None:
        later = later.where(TrackingEvent.model == model)
    if job is not None:
        later = later.where(TrackingEvent.job_id == job)
    if deletions:
        later = later.where(TrackingEvent.kind == TrackingEventKind.DELETED)
    return session.scalar(later)


def find_traceparent(database: Database, job_id: str | None) -> str | None:
    """The span of the request that caused a job, if traces were on."""
    with database.read() as session:
        return session.scalar(select(Job.traceparent).where(Job.id == job_id))


def measure_backlog(session: Session) -> tuple[int, datetime | None]:
    """How many events are not published yet, and when the oldest of them happened."""
    count, oldest = session.execute(select(func.count(), func.min(TrackingEvent.created_at))).one()
    return count, oldest
