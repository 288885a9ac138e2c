"""Leases of jobs: taking, extending and releasing them, and ending jobs.

A worker owns a job while its lease lasts, and extends the lease as long as it lives. The results of a job are written
in one transaction that first checks the lease, so a job that runs twice takes effect once. A job that must run again,
for whatever reason, stays `running` with a lease that expires, and the next worker takes it over. Starting what follows
the end of a job is up to the caller: see `worker.attempt`.
"""

from __future__ import annotations

from datetime import timedelta

from sqlalchemy import select, update
from sqlalchemy.orm import Session

from core.database import Database, now, rows_changed
from core.errors import Conflict
from core.jobs.queries import find_in_state
from core.jobs.queue import enqueue_message
from core.tables.figures import JobError
from core.tables.jobs import ENDED, Job, JobKind, JobState
from core.tables.models import Model
from core.versions.queries import tip_of

MAX_MESSAGE_LENGTH = 500
"""Characters of a job's message; the rest is cut off."""


class JobLost(Exception):
    """The lease is lost: it expired and another worker took the job, or the model was deleted."""


class JobCancelled(Exception):
    """The job was asked to stop."""


def take(session: Session, job_id: str, owner: str, seconds: float, max_attempts: int) -> tuple[Job, Model] | None:
    """Start a job, or take over one whose lease expired; None if it has ended, is leased, or has to wait.

    A job that was started `max_attempts` times already, or whose cancellation was requested, is ended here, and
    returned in that state.
    """
    found = lock(session, job_id)
    if found is None:
        return None
    job, model = found
    if job.state in ENDED:
        return None
    if job.state is JobState.RUNNING:
        if job.lease_until is not None and job.lease_until > now():
            return None
        if job.cancelling:
            end(job, JobState.CANCELLED, "cancelled")
            return found
        if job.attempts >= max_attempts:
            job.error = job.error or {"code": "worker_lost", "detail": "The workers that ran it were lost."}
            end(job, JobState.FAILED, f"failed after {job.attempts} attempt{'s' * (job.attempts != 1)}")
            return found
    elif find_in_state(session, model.id, job.kind, JobState.RUNNING) is not None:
        return None  # a message is sent again when that one ends
    tip = None if job.kind is JobKind.RETRAIN else tip_of(session, model)
    job.state, job.attempts, job.started_at = JobState.RUNNING, job.attempts + 1, job.started_at or now()
    job.progress, job.message = 0.0, "started"
    job.from_position, job.to_position = tip.position if tip else 0, model.head
    job.lease_owner, job.lease_until = owner, now() + timedelta(seconds=seconds)
    return found


def extend(database: Database, job_id: str, owner: str, seconds: float, progress: float, message: str) -> None:
    """Extend a lease and store the progress; raises JobLost or JobCancelled if the work must stop."""
    with database.write() as session:
        owned = (Job.id == job_id, Job.lease_owner == owner, Job.state == JobState.RUNNING)
        until = now() + timedelta(seconds=seconds)
        values = {"lease_until": until, "progress": progress, "message": message[:MAX_MESSAGE_LENGTH]}
        if rows_changed(session, update(Job).where(*owned).values(**values)) == 0:
            raise JobLost
        if session.scalar(select(Job.cancelling).where(Job.id == job_id)):
            raise JobCancelled


def require_owned(session: Session, job_id: str, owner: str) -> tuple[Job, Model]:
    """The job and its model, locked, to write the results; raises JobLost or JobCancelled if that must not be."""
    found = find_owned(session, job_id, owner)
    if found is None:
        raise JobLost
    if found[0].cancelling:
        raise JobCancelled
    return found


def find_owned(session: Session, job_id: str, owner: str) -> tuple[Job, Model] | None:
    """The job and its model, locked; None if the owner has lost the lease."""
    found = lock(session, job_id)
    if found is None or found[0].lease_owner != owner or found[0].state is not JobState.RUNNING:
        return None
    return found


def lock(session: Session, job_id: str) -> tuple[Job, Model] | None:
    """Lock a job and its model; the model first, as everywhere. None if there is no such job."""
    model_id = session.scalar(select(Job.model_id).where(Job.id == job_id))
    model = session.get(Model, model_id, with_for_update=True, populate_existing=True) if model_id else None
    job = session.get(Job, job_id, with_for_update=True, populate_existing=True) if model else None
    return (job, model) if job and model else None


def end(job: Job, state: JobState, message: str) -> None:
    """Set the final state of a job."""
    job.state, job.message, job.finished_at = state, message[:MAX_MESSAGE_LENGTH], now()
    job.seconds = (job.finished_at - job.started_at).total_seconds() if job.started_at else None
    job.lease_owner = job.lease_until = None
    if state is JobState.SUCCEEDED:
        job.progress, job.error = 1.0, None


def release(session: Session, job: Job, message: str, pause: float = 0.0) -> None:
    """Give up the lease: any worker may take the job over after the pause, in seconds."""
    job.lease_owner, job.lease_until = None, now() + timedelta(seconds=pause)
    job.message = message[:MAX_MESSAGE_LENGTH]
    if pause == 0:
        enqueue_message(session, job)


def fail_attempt(session: Session, job: Job, error: JobError, max_attempts: int, pause: float) -> None:
    """Record a failed attempt: the job is retried after the pause, or fails after the last attempt."""
    if job.attempts <= 0:
        release(session, job, f"interrupted: {error['detail']}", pause)
        return
    job.error = error
    if job.attempts >= max_attempts:
        end(job, JobState.FAILED, f"failed after {job.attempts} attempt{'s' * (job.attempts != 1)}: {error['detail']}")
    else:
        release(session, job, f"attempt {job.attempts} of {max_attempts} failed: {error['detail']}", pause)


def cancel(job: Job) -> None:
    """Cancel a job: at once if no worker runs it, else by asking that worker. Raises Conflict if it has ended."""
    if job.state in ENDED:
        raise Conflict("job_ended", f"The job has ended already: {job.state}.")
    if job.kind is JobKind.ERASE:
        raise Conflict("job_required", "What is to be erased is erased; refuse the erasure if there is a reason.")
    if job.state is JobState.QUEUED:
        end(job, JobState.CANCELLED, "cancelled before it started")
    elif job.lease_owner is None:
        end(job, JobState.CANCELLED, "cancelled")
    else:
        job.cancelling, job.message = True, "asked to stop"
