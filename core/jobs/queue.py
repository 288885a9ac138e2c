"""Enqueueing jobs. The caller holds the lock on the model's row, so a job is never enqueued twice."""

import uuid
from datetime import datetime

from sqlalchemy.orm import Session

from core.jobs.queries import find_in_state, has_unfinished
from core.kprior.model.spec import is_network
from core.ledger.specs import spec_at
from core.tables.jobs import Job, JobKind, JobState, Outbox
from core.tables.models import Model
from core.versions.queries import newest_number, tip_of

QUEUES = ("quick", "long", "quick-gpu", "long-gpu")
"""Adaptations are quick and trainings from scratch long; jobs of networks have queues of their own, for GPUs."""


def enqueue(
    session: Session, model: Model, kind: JobKind, request_id: str | None = None, due_at: datetime | None = None
) -> Job:
    """Enqueue a job up to the head, or return the one that is queued already."""
    job = find_in_state(session, model.id, kind, JobState.QUEUED)
    if job is not None:
        job.to_position = model.head
        return job
    parent = tip_of(session, model)
    network = is_network(spec_at(session, model.id, model.spec, model.head)["architecture"])
    quick = parent is not None and kind is not JobKind.RETRAIN
    job = Job(
        id=str(uuid.uuid4()),
        model_id=model.id,
        kind=kind,
        from_position=parent.position if parent and kind is not JobKind.RETRAIN else 0,
        to_position=model.head,
        message="Waiting for a worker",
        queue=("quick" if quick else "long") + ("-gpu" if network else ""),
        request_id=request_id,
        due_at=due_at,
    )
    session.add(job)
    session.flush()
    enqueue_message(session, job)
    return job


def enqueue_message(session: Session, job: Job) -> None:
    """Have a message about a job sent to the workers after the transaction commits."""
    session.add(Outbox(job_id=job.id))
    session.info["message_enqueued"] = True


def enqueue_next(session: Session, job: Job) -> None:
    """Have a message sent about the job that was waiting for this one to end, if any."""
    following = find_in_state(session, job.model_id, job.kind, JobState.QUEUED)
    if following is not None:
        enqueue_message(session, following)


def enqueue_adaptation(session: Session, model: Model, request_id: str | None, even_held: bool = False) -> str | None:
    """Enqueue an adaptation to the head; returns the id of its job.

    None if the model was never trained, or is held: `resumption.resume` enqueues what is pending then. Erasures set
    `even_held`. While the first training is queued or running, an adaptation is enqueued as well, because the training
    may have read the examples before they changed.
    """
    if model.held_at is not None and not even_held:
        return None
    trained = newest_number(session, model.id) > 0
    if not trained and not has_unfinished(session, model.id, JobKind.ADAPT, JobKind.RETRAIN):
        return None
    return enqueue(session, model, JobKind.ADAPT, request_id).id
