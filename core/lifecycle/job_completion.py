"""What happens when a job ends, whether a worker finished it or a caller cancelled it."""

from sqlalchemy.orm import Session

from core.erasure import state_changes
from core.jobs import queue
from core.tables.jobs import ENDED, Job, JobKind, JobState
from core.tables.models import Model
from core.tables.tracking import TrackingEventKind, enqueue_event
from core.tables.webhooks import WebhookEvent
from core.webhooks.events import emit


def follow_up(session: Session, job: Job, model: Model) -> None:
    """If a job has ended, start what follows, in the same transaction.

    Enqueues the event for MLflow and the next job of the same kind; if the job failed, notifies webhooks and marks the
    erasures that it should have carried out as failed.
    """
    if job.state not in ENDED:
        return
    silent = job.kind is JobKind.ERASE or (job.kind is JobKind.ANALYSE and job.state is not JobState.SUCCEEDED)
    if not silent:
        enqueue_event(session, model, TrackingEventKind.JOB, job.id)
    elif job.kind is JobKind.ERASE and job.state is not JobState.SUCCEEDED:
        state_changes.fail(session, model.id, job.error or {"code": "job_ended", "detail": f"The job was {job.state}."})
    if job.state is JobState.FAILED:
        code = job.error["code"] if job.error else None
        emit(session, WebhookEvent.JOB_FAILED, model=model.name, job=job.id, kind=job.kind.value, code=code)
    queue.enqueue_next(session, job)
