"""What happens when a job ends, whether a worker finished it or a caller cancelled it."""

from sqlalchemy.orm import Session

from core.erasure import states
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
    if job.kind is not JobKind.ERASE:  # it creates no version, so there is nothing to publish
        enqueue_event(session, model, TrackingEventKind.JOB, job.id)
    elif job.state is not JobState.SUCCEEDED:
        states.fail(session, model.id, job.error or {"code": "job_ended", "detail": f"The job was {job.state}."})
    if job.state is JobState.FAILED:
        code = job.error["code"] if job.error else None
        emit(session, WebhookEvent.JOB_FAILED, model=model.name, job=job.id, kind=job.kind.value, code=code)
    queue.enqueue_next(session, job)
