"""Heartbeats of workers. Each worker writes one every few seconds; readiness checks read the latest."""

from datetime import datetime

from sqlalchemy import delete
from sqlalchemy.orm import Session

from core.clock import now
from core.tables.jobs import Worker


def record_heartbeat(session: Session, name: str) -> None:
    """Write a worker's heartbeat."""
    session.merge(Worker(name=name, seen_at=now()))


def delete_silent(session: Session, before: datetime) -> None:
    """Delete workers whose last heartbeat was before a time."""
    session.execute(delete(Worker).where(Worker.seen_at < before))
