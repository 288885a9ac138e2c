"""Making jobs due, and cancelling them. The caller holds the model's lock, so two cannot both find that none waits."""

from __future__ import annotations

import uuid
from datetime import datetime

from sqlalchemy.orm import Session

from core.jobs.queries import find_in_state, has_unfinished
from core.ledger.specs import spec_at
from core.models.spec import GLM_KINDS
from core.tables.jobs import Job, JobKind, JobState, Outbox
from core.tables.models import Model
from core.versions.queries import newest_number, tip_of

QUEUES = ("quick", "long", "quick-gpu", "long-gpu")
"""Adaptations are quick, training from scratch is long; jobs on networks have queues of their own, for GPUs."""


def enqueue(
    session: Session,
    model: Model,
    kind: JobKind,
    request_id: str | None = None,
    due_at: datetime | None = None,
) -> Job:
    """The queued job of this kind, up to the head: the one that waits already, or a new one."""
    job = find_in_state(session, model.id, kind, JobState.QUEUED)
    if job is not None:
        job.to_position = model.head
        return job
    parent = tip_of(session, model)
    network = spec_at(session, model.id, model.spec, model.head)["architecture"]["kind"] not in GLM_KINDS
    quick = parent is not None and kind is not JobKind.RETRAIN
    job = Job(
        id=str(uuid.uuid4()),
        model_id=model.id,
        kind=kind,
        from_position=parent.position if parent and kind is not JobKind.RETRAIN else 0,
        to_position=model.head,
        message="waits for a worker",
        queue=("quick" if quick else "long") + ("-gpu" if network else ""),
        request_id=request_id,
        due_at=due_at,
    )
    session.add(job)
    session.flush()
    enqueue_message(session, job)
    return job


def enqueue_message(session: Session, job: Job) -> None:
    """Have the workers told of a job once the transaction is committed."""
    session.add(Outbox(job_id=job.id))
    session.info["message_enqueued"] = True


def enqueue_next(session: Session, job: Job) -> None:
    """Have the workers told of the job that waited for this one to end, if there is any."""
    following = find_in_state(session, job.model_id, job.kind, JobState.QUEUED)
    if following is not None:
        enqueue_message(session, following)


def enqueue_adaptation(session: Session, model: Model, request_id: str | None, even_held: bool = False) -> str | None:
    """The id of the job that adapts the model to its head; None while nothing was ever trained on its examples, and
    while the model is held: `holds.resume` makes due what waits. An erasure is carried out `even_held`.

    A training that runs now may have read them already: what comes after must be due, too.
    """
    if model.held_at is not None and not even_held:
        return None
    trained = newest_number(session, model.id) > 0
    if not trained and not has_unfinished(session, model.id, JobKind.ADAPT, JobKind.RETRAIN):
        return None
    return enqueue(session, model, JobKind.ADAPT, request_id).id
