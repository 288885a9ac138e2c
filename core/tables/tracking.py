"""The table of what MLflow is still to be told."""

from __future__ import annotations

from datetime import datetime
from enum import StrEnum

from sqlalchemy import String
from sqlalchemy.orm import Mapped, Session, mapped_column

from core.database import Base, BigInteger, enum_column, now
from core.tables.models import Model


class TrackingEventKind(StrEnum):
    """What can have happened."""

    JOB = "job"
    """A job ended, perhaps with a version or a comparison."""
    ALIASES = "aliases"
    """Another version became champion."""
    DELETED = "deleted"
    """The model was deleted."""


class TrackingEvent(Base):
    """Something that MLflow has not been told yet. Written with what happened, deleted once told, in this order."""

    __tablename__ = "entries"
    __table_args__ = {"sqlite_autoincrement": True}

    id: Mapped[int] = mapped_column(BigInteger, primary_key=True)
    kind: Mapped[TrackingEventKind] = mapped_column(enum_column(TrackingEventKind))
    model_id: Mapped[int]
    """No foreign key: of a deleted model there is something to tell, too."""
    model: Mapped[str] = mapped_column(String(63))
    job_id: Mapped[str | None] = mapped_column(String(36))
    attempts: Mapped[int] = mapped_column(default=0)
    """How often MLflow answered and did not take it."""
    error: Mapped[str | None] = mapped_column(String(200))
    tried_at: Mapped[datetime] = mapped_column(default=now)
    created_at: Mapped[datetime] = mapped_column(default=now)


def enqueue_event(session: Session, model: Model, kind: TrackingEventKind, job_id: str | None = None) -> None:
    """Note, in the transaction in which it happens, what MLflow shall be told."""
    session.add(TrackingEvent(kind=kind, model_id=model.id, model=model.name, job_id=job_id))
