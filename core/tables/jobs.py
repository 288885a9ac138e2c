"""The tables of jobs, of messages to workers that are yet to be sent, and of workers' heartbeats."""

from datetime import datetime
from enum import StrEnum

from sqlalchemy import ColumnElement, ForeignKey, Index, String, UniqueConstraint, literal_column, text
from sqlalchemy.orm import Mapped, mapped_column

from core.clock import now
from core.database import Base, BigInteger, Json, enum_column
from core.tables.documents import JobError
from core.tables.models import Model
from core.tracing import MAX_TRACEPARENT, traceparent


class JobKind(StrEnum):
    """Kinds of jobs."""

    ADAPT = "adapt"
    RETRAIN = "retrain"
    ERASE = "erase"
    REBUILD = "rebuild"
    """Trains at the position of a purged version, and promotes the result."""
    ANALYSE = "analyse"
    """Computes an analysis; makes no version."""


class JobState(StrEnum):
    """States of a job."""

    QUEUED = "queued"
    RUNNING = "running"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    CANCELLED = "cancelled"


ENDED = (JobState.SUCCEEDED, JobState.FAILED, JobState.CANCELLED)


def unique_in_state(state: JobState) -> Index:
    """At most one job of a model and kind in this state."""
    where, columns = text(f"state = '{state}'"), ["model_id", "kind"]
    if state is JobState.QUEUED:
        columns.append("unmerged")
    return Index(f"uq_jobs_{state}", *columns, unique=True, sqlite_where=where, postgresql_where=where)


class Job(Base):
    """A unit of work on one model, from one position to another."""

    __tablename__ = "jobs"
    # one queued job: pending changes are merged into it; one running job: two would start from the same parent
    __table_args__ = (
        unique_in_state(JobState.QUEUED),
        unique_in_state(JobState.RUNNING),
        # several schedulers create only one job for a due time
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
    """The head when the job was enqueued; the worker uses the head when it starts the job."""
    version: Mapped[int | None]
    target: Mapped[int | None]
    """Number of the purged version that a job of the kind `rebuild` stands in for."""
    unmerged: Mapped[str] = mapped_column(String(36), default="")
    """The id of a job that is never merged with another queued one, an analysis; empty for all others."""
    requested_by: Mapped[str | None] = mapped_column(String(20))
    """Id of the key that requested a rebuild."""
    cancel_requested: Mapped[bool] = mapped_column(default=False)
    """Whether a running job was asked to stop."""
    due_at: Mapped[datetime | None]
    """Time of a scheduled job on its schedule."""
    sent_at: Mapped[datetime | None]
    """When the last message about the job was sent to the workers."""
    queue: Mapped[str] = mapped_column(String(20), default="quick")
    """Queue of the workers that can run the job."""
    lease_owner: Mapped[str | None] = mapped_column(String(200))
    lease_expires_at: Mapped[datetime | None]
    """When another worker may take over a running job, unless its owner extends the lease."""
    request_id: Mapped[str | None] = mapped_column(String(64))
    """Id of the request that caused the job; it is in the logs of both."""
    traceparent: Mapped[str | None] = mapped_column(String(MAX_TRACEPARENT), default=traceparent)
    """Span of the request that caused the job, if traces are on."""
    created_at: Mapped[datetime] = mapped_column(default=now)
    started_at: Mapped[datetime | None]
    finished_at: Mapped[datetime | None]
    seconds: Mapped[float | None]
    """Duration from start to end, all attempts included; stored so that sums over thousands of jobs are fast."""


def in_state(state: JobState) -> ColumnElement[bool]:
    """Condition on the state as a literal: SQLite uses the partial index only then."""
    return Job.state == literal_column(f"'{state}'")


class Outbox(Base):
    """A message to the workers that is yet to be sent; written with the job, deleted once sent."""

    __tablename__ = "outbox"
    # ids are never reused: a sender deletes a message by its id after sending it
    __table_args__ = {"sqlite_autoincrement": True}

    id: Mapped[int] = mapped_column(BigInteger, primary_key=True)
    job_id: Mapped[str] = mapped_column(ForeignKey(Job.id, ondelete="CASCADE"), index=True)
    created_at: Mapped[datetime] = mapped_column(default=now)


class Worker(Base):
    """A worker process and the time of its last heartbeat."""

    __tablename__ = "workers"

    name: Mapped[str] = mapped_column(String(200), primary_key=True)
    seen_at: Mapped[datetime]
