"""What follows the end of a job, whether a worker ended it or a caller cancelled it."""

from __future__ import annotations

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

    That is the event for MLflow, the event for webhooks if it failed, the next job of its kind, and the new state of
    the erasures that it was to carry out.
    """
    if job.state not in ENDED:
        return
    if job.kind is not JobKind.ERASE:  # it makes no version: there is nothing to show
        enqueue_event(session, model, TrackingEventKind.JOB, job.id)
    elif job.state is not JobState.SUCCEEDED:
        states.fail(session, model.id, job.error or {"code": "job_ended", "detail": f"The job was {job.state}."})
    if job.state is JobState.FAILED:
        code = job.error["code"] if job.error else None
        emit(session, WebhookEvent.JOB_FAILED, model=model.name, job=job.id, kind=job.kind.value, code=code)
    queue.enqueue_next(session, job)
