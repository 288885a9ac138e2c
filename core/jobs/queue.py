"""Enqueueing jobs. The caller holds the lock on the model's row, so a job is never enqueued twice."""

import uuid
from datetime import datetime

from sqlalchemy.orm import Session

from core.errors import Conflict
from core.jobs.queries import find_in_state, find_oldest_queued, has_unfinished
from core.kprior.model.spec import is_network
from core.ledger.spec_history import spec_at
from core.tables.jobs import Job, JobKind, JobState, Outbox
from core.tables.models import Model
from core.tables.versions import Version
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
    parent = tip_of(session, model) if kind is not JobKind.RETRAIN else None
    job = Job(kind=kind, from_position=parent.position if parent else 0, to_position=model.head)
    job.request_id, job.due_at = request_id, due_at
    return add(session, model, job, quick=parent is not None)


def enqueue_rebuild(session: Session, model: Model, version: Version, by: str, request_id: str | None) -> Job:
    """Enqueue a job that rebuilds a purged version, or return the one that is queued or running already.

    `by` is the id of the key that requested it. Raises Conflict if another version is being rebuilt.
    """
    for state in (JobState.RUNNING, JobState.QUEUED):
        job = find_in_state(session, model.id, JobKind.REBUILD, state)
        if job is not None and job.target != version.number:
            detail = f"Version {job.target} is being rebuilt. Wait for the job {job.id}, or cancel it."
            raise Conflict("rebuild_in_progress", detail)
        if job is not None:
            return job
    job = Job(kind=JobKind.REBUILD, from_position=0, to_position=version.position, target=version.number)
    job.request_id, job.requested_by = request_id, by
    return add(session, model, job, quick=False)


def enqueue_analysis(
    session: Session, model: Model, by: str | None, request_id: str | None, due_at: datetime | None = None
) -> Job:
    """Enqueue the job of one analysis; two analyses are never merged."""
    job = Job(kind=JobKind.ANALYSE, from_position=0, to_position=model.head, due_at=due_at)
    job.request_id, job.requested_by = request_id, by
    return add(session, model, job, quick=False)


def add(session: Session, model: Model, job: Job, quick: bool) -> Job:
    """Enqueue a job and have a message about it sent after the commit."""
    network = is_network(spec_at(session, model.id, model.spec, job.to_position)["architecture"])
    job.id, job.model_id, job.message = str(uuid.uuid4()), model.id, "Waiting for a worker"
    job.unmerged = job.id if job.kind is JobKind.ANALYSE else ""
    job.queue = ("quick" if quick else "long") + ("-gpu" if network else "")
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
    following = find_oldest_queued(session, job.model_id, job.kind)
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
