"""Heartbeats of workers: each writes one every few seconds, and readiness checks read the last."""

from __future__ import annotations

from datetime import datetime

from sqlalchemy import delete
from sqlalchemy.orm import Session

from core.database import now
from core.tables.jobs import Worker


def record_heartbeat(session: Session, name: str) -> None:
    """Write a worker's heartbeat."""
    session.merge(Worker(name=name, seen_at=now()))


def delete_silent(session: Session, before: datetime) -> None:
    """Delete workers whose last heartbeat is older than that."""
    session.execute(delete(Worker).where(Worker.seen_at < before))
