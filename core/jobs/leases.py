"""Leases of jobs: taking and extending them, and ending jobs. `core.jobs.retries` releases them.

A worker owns a job while its lease lasts, and extends the lease while it works. The results of a job are written in one
transaction that checks the lease first, so a job that runs twice takes effect once. A job that must run again stays
`running` with an expired lease until the next worker takes it over. When a job ends, the caller starts what follows:
see `core.lifecycle.job_completion`.
"""

from datetime import timedelta
from functools import cache

from sqlalchemy import Select, bindparam, select, update
from sqlalchemy.orm import Session

from core.clock import now
from core.database import Database
from core.errors import Conflict
from core.jobs.queries import find_in_state
from core.tables.jobs import ENDED, Job, JobKind, JobState
from core.tables.models import Model
from core.versions.queries import tip_of

MAX_MESSAGE_LENGTH = 500
"""Maximum length of a job's message in characters; longer messages are truncated."""


WORKER_LOST = (
    "Every worker process that ran the job was killed or lost. The usual reason is that it ran out of memory: give"
    " workers more memory (docker compose: AMEND_WORKER_MEMORY), or run fewer jobs at once (AMEND_WORKER_PROCESSES)."
)


class JobLost(Exception):
    """The lease is lost: another worker took the job after it expired, or the model was deleted."""


class JobCancelled(Exception):
    """Cancellation of the job was requested."""


def take(session: Session, job_id: str, owner: str, seconds: float, max_attempts: int) -> tuple[Job, Model] | None:
    """Start a job, or take over one whose lease expired; None if it has ended, is leased, or has to wait.

    If the job was started `max_attempts` times already, or its cancellation was requested, it is ended instead, and
    returned in its final state.
    """
    found = lock(session, job_id)
    if found is None:
        return None
    job, model = found
    if job.state in ENDED:
        return None
    if job.state is JobState.RUNNING:
        if job.lease_expires_at is not None and job.lease_expires_at > now():
            return None
        if job.cancel_requested:
            end(job, JobState.CANCELLED, "Cancelled.")
            return found
        if job.attempts >= max_attempts:
            job.error = job.error or {"code": "worker_lost", "detail": WORKER_LOST}
            end(job, JobState.FAILED, f"Failed after {job.attempts} attempt{'s' * (job.attempts != 1)}.")
            return found
    elif find_in_state(session, model.id, job.kind, JobState.RUNNING) is not None:
        return None  # another message is sent when the running job ends
    job.state, job.attempts, job.started_at = JobState.RUNNING, job.attempts + 1, job.started_at or now()
    job.progress, job.message = 0.0, "Started"
    if job.kind is not JobKind.REBUILD:  # the position of which does not move
        tip = None if job.kind is JobKind.RETRAIN else tip_of(session, model)
        job.from_position, job.to_position = tip.position if tip else 0, model.head
    job.lease_owner, job.lease_expires_at = owner, now() + timedelta(seconds=seconds)
    return found


def extend(database: Database, job_id: str, owner: str, seconds: float, progress: float, message: str) -> None:
    """Extend a lease and store the progress. Raises JobLost or JobCancelled if the work must stop."""
    with database.write() as session:
        owned = (Job.id == job_id, Job.lease_owner == owner, Job.state == JobState.RUNNING)
        until = now() + timedelta(seconds=seconds)
        values = {"lease_expires_at": until, "progress": progress, "message": message[:MAX_MESSAGE_LENGTH]}
        extended = update(Job).where(*owned).values(**values).returning(Job.cancel_requested)
        cancelled = session.scalar(extended, execution_options={"synchronize_session": False})
        if cancelled is None:
            raise JobLost
        if cancelled:
            raise JobCancelled


def require_owned(session: Session, job_id: str, owner: str) -> tuple[Job, Model]:
    """The job and its model, locked to write the results. Raises JobLost or JobCancelled if that is not allowed."""
    found = find_owned(session, job_id, owner)
    if found is None:
        raise JobLost
    if found[0].cancel_requested:
        raise JobCancelled
    return found


def find_owned(session: Session, job_id: str, owner: str) -> tuple[Job, Model] | None:
    """The job and its model, locked; None if the owner has lost the lease."""
    found = lock(session, job_id)
    if found is None or found[0].lease_owner != owner or found[0].state is not JobState.RUNNING:
        return None
    return found


def lock(session: Session, job_id: str) -> tuple[Job, Model] | None:
    """Lock the model and then its job, the order that all transactions use; None if there is no such job."""
    model = session.scalar(select_locked_model(), {"job": job_id})
    job = session.get(Job, job_id, with_for_update=True, populate_existing=True) if model else None
    return (job, model) if job and model else None


@cache  # building the statement takes longer than running it
def select_locked_model() -> Select[Model]:
    """Query that locks the model of a job."""
    of_job = select(Job.model_id).where(Job.id == bindparam("job")).scalar_subquery()
    return select(Model).where(Model.id == of_job).with_for_update().execution_options(populate_existing=True)


def end(job: Job, state: JobState, message: str) -> None:
    """Set the final state of a job."""
    job.state, job.message, job.finished_at = state, message[:MAX_MESSAGE_LENGTH], now()
    job.seconds = (job.finished_at - job.started_at).total_seconds() if job.started_at else None
    job.lease_owner = job.lease_expires_at = None
    if state is JobState.SUCCEEDED:
        job.progress, job.error = 1.0, None


def cancel(job: Job) -> None:
    """Cancel a job, or ask the worker that runs it to stop. Raises Conflict if the job has ended."""
    if job.state in ENDED:
        raise Conflict("job_ended", f"The job has already ended ({job.state}).")
    if job.kind is JobKind.ERASE:
        raise Conflict("job_required", "Erasure jobs cannot be cancelled. Refuse the erasure request instead.")
    if job.state is JobState.QUEUED:
        end(job, JobState.CANCELLED, "Cancelled before it started.")
    elif job.lease_owner is None:
        end(job, JobState.CANCELLED, "Cancelled.")
    else:
        job.cancel_requested, job.message = True, "Stopping"
