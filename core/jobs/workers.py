"""Which workers live: each writes a sign of life every few seconds, readiness reads the last one."""

from __future__ import annotations

from datetime import datetime

from sqlalchemy import delete
from sqlalchemy.orm import Session

from core.database import now
from core.tables.jobs import Worker


def record_heartbeat(session: Session, name: str) -> None:
    """Write that a worker lives."""
    session.merge(Worker(name=name, seen_at=now()))


def delete_silent(session: Session, before: datetime) -> None:
    """Strike off the list who has been silent since then."""
    session.execute(delete(Worker).where(Worker.seen_at < before))
