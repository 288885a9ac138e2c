"""The tables of jobs, of messages about them that are still to be sent, and of workers' signs."""

from __future__ import annotations

from datetime import datetime
from enum import StrEnum

from sqlalchemy import ColumnElement, ForeignKey, Index, String, UniqueConstraint, literal_column, text
from sqlalchemy.orm import Mapped, mapped_column

from core.database import Base, BigInteger, Json, enum_column, now
from core.tables.figures import JobError
from core.tables.models import Model


class JobKind(StrEnum):
    """What a worker can be asked to do."""

    ADAPT = "adapt"
    RETRAIN = "retrain"
    ERASE = "erase"


class JobState(StrEnum):
    """Where a job stands."""

    QUEUED = "queued"
    RUNNING = "running"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    CANCELLED = "cancelled"


ENDED = (JobState.SUCCEEDED, JobState.FAILED, JobState.CANCELLED)


def unique_in_state(state: JobState) -> Index:
    """At most one job of a model and kind in this state."""
    where = text(f"state = '{state}'")
    return Index(f"uq_jobs_{state}", "model_id", "kind", unique=True, sqlite_where=where, postgresql_where=where)


class Job(Base):
    """One unit of work on one model, from one position to another."""

    __tablename__ = "jobs"
    # one queued: pending changes become one job; one running: two would start from the same parent
    __table_args__ = (
        unique_in_state(JobState.QUEUED),
        unique_in_state(JobState.RUNNING),
        # however many schedulers there are, a due time is met once
        UniqueConstraint("model_id", "kind", "due_at"),
        Index("ix_jobs_listed", "created_at", "id"),
        Index("ix_jobs_of_model", "model_id", "kind", "created_at"),
    )

    id: Mapped[str] = mapped_column(String(36), primary_key=True)
    model_id: Mapped[int] = mapped_column(ForeignKey(Model.id, ondelete="CASCADE"))
    kind: Mapped[JobKind] = mapped_column(enum_column(JobKind))
    state: Mapped[JobState] = mapped_column(enum_column(JobState), default=JobState.QUEUED)
    progress: Mapped[float] = mapped_column(default=0.0)
    message: Mapped[str] = mapped_column(String(500), default="")
    attempts: Mapped[int] = mapped_column(default=0)
    error: Mapped[JobError | None] = mapped_column(Json)
    from_position: Mapped[int] = mapped_column(BigInteger)
    to_position: Mapped[int] = mapped_column(BigInteger)
    """The head when the job became due; the worker takes the head of the moment it starts."""
    version: Mapped[int | None]
    cancelling: Mapped[bool] = mapped_column(default=False)
    """A running job was asked to stop."""
    due_at: Mapped[datetime | None]
    """Of a scheduled job: the time on its schedule."""
    sent_at: Mapped[datetime | None]
    """When workers were last told of it."""
    queue: Mapped[str] = mapped_column(String(20), default="quick")
    """Which workers are told of it."""
    lease_owner: Mapped[str | None] = mapped_column(String(200))
    lease_until: Mapped[datetime | None]
    """While a job runs: when it may be taken over, by a worker that has not heard of its owner until then."""
    request_id: Mapped[str | None] = mapped_column(String(64))
    """Of the request that made it due, so that the logs of both can be read together."""
    created_at: Mapped[datetime] = mapped_column(default=now)
    started_at: Mapped[datetime | None]
    finished_at: Mapped[datetime | None]
    seconds: Mapped[float | None]
    """From its start to its end, all attempts included: written down so that thousands of jobs are soon added up."""


def in_state(state: JobState) -> ColumnElement[bool]:
    """Jobs that wait, or that run, by the index of those: SQLite uses it only where the state is written out."""
    return Job.state == literal_column(f"'{state}'")


class Outbox(Base):
    """A message to the workers that is not sent yet; written with the job, deleted once sent."""

    __tablename__ = "outbox"
    # a number is never used again: whoever has sent a message deletes it by its number
    __table_args__ = {"sqlite_autoincrement": True}

    id: Mapped[int] = mapped_column(BigInteger, primary_key=True)
    job_id: Mapped[str] = mapped_column(ForeignKey(Job.id, ondelete="CASCADE"), index=True)
    created_at: Mapped[datetime] = mapped_column(default=now)


class Worker(Base):
    """A worker process and when it was last heard of."""

    __tablename__ = "workers"

    name: Mapped[str] = mapped_column(String(200), primary_key=True)
    seen_at: Mapped[datetime]
