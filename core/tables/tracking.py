"""The table of events that are yet to be published to MLflow."""

from datetime import datetime
from enum import StrEnum

from sqlalchemy import String
from sqlalchemy.orm import Mapped, Session, mapped_column

from core.clock import now
from core.database import Base, BigInteger, enum_column
from core.tables.models import Model


class TrackingEventKind(StrEnum):
    """Kinds of events."""

    JOB = "job"
    """A job ended, perhaps with a version or a comparison."""
    ALIASES = "aliases"
    """Another version became the champion."""
    PURGED = "purged"
    """The policy's retention deleted the weights of versions."""
    DELETED = "deleted"
    """The model was deleted."""


class TrackingEvent(Base):
    """An event that is yet to be published to MLflow.

    It is written in the transaction of the event itself and deleted once published. Events are published in order.
    """

    __tablename__ = "tracking_events"
    __table_args__ = {"sqlite_autoincrement": True}

    id: Mapped[int] = mapped_column(BigInteger, primary_key=True)
    kind: Mapped[TrackingEventKind] = mapped_column(enum_column(TrackingEventKind))
    model_id: Mapped[int]
    """No foreign key: the deletion of a model is published as well."""
    model: Mapped[str] = mapped_column(String(63))
    job_id: Mapped[str | None] = mapped_column(String(36))
    attempts: Mapped[int] = mapped_column(default=0)
    """How often MLflow responded with an error."""
    error: Mapped[str | None] = mapped_column(String(200))
    attempted_at: Mapped[datetime] = mapped_column(default=now)
    created_at: Mapped[datetime] = mapped_column(default=now)


def enqueue_event(session: Session, model: Model, kind: TrackingEventKind, job_id: str | None = None) -> None:
    """Enqueue an event for MLflow, in the transaction in which it happens."""
    session.add(TrackingEvent(kind=kind, model_id=model.id, model=model.name, job_id=job_id))
