"""What happens to a running job that was interrupted, or whose attempt failed: it is retried, or it fails."""

from datetime import timedelta

from sqlalchemy.orm import Session

from core.clock import now
from core.jobs.leases import MAX_MESSAGE_LENGTH, end
from core.jobs.queue import enqueue_message
from core.tables.documents import JobError
from core.tables.jobs import Job, JobState


def release(session: Session, job: Job, message: str, pause: float = 0.0) -> None:
    """Give up the lease; any worker may take the job over after `pause` seconds."""
    job.lease_owner, job.lease_expires_at = None, now() + timedelta(seconds=pause)
    job.message = message[:MAX_MESSAGE_LENGTH]
    if pause == 0:
        enqueue_message(session, job)


def fail_attempt(session: Session, job: Job, error: JobError, max_attempts: int, pause: float) -> None:
    """Record a failed attempt; the job is retried after `pause` seconds, or fails after the last attempt."""
    if job.attempts <= 0:
        release(session, job, f"Interrupted: {error['detail']}", pause)
        return
    job.error = error
    if job.attempts >= max_attempts:
        end(job, JobState.FAILED, f"Failed after {job.attempts} attempt{'s' * (job.attempts != 1)}: {error['detail']}")
    else:
        release(session, job, f"Attempt {job.attempts} of {max_attempts} failed: {error['detail']}", pause)
