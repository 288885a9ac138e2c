"""Making jobs due, and cancelling them. The caller holds the model's lock, so two cannot both find that none waits."""

from __future__ import annotations

import uuid
from datetime import datetime

from sqlalchemy import select
from sqlalchemy.orm import Session

from core.ledger.specs import spec_at
from core.tables.jobs import Job, JobKind, JobState, Outbox, in_state
from core.tables.models import Model
from core.tables.versions import Version

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
    queued = select(Job).where(Job.model_id == model.id, Job.kind == kind, in_state(JobState.QUEUED))
    job = session.scalar(queued)
    if job is not None:
        job.to_position = model.head
        return job
    parent = session.get(Version, (model.id, model.tip)) if model.tip else None
    network = spec_at(session, model.id, model.spec, model.head)["architecture"]["kind"] != "linear"
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
    session.info["announced"] = True


def enqueue_next(session: Session, job: Job) -> None:
    """Have the workers told of the job that waited for this one to end, if there is any."""
    session.flush()
    waiting = (Job.model_id == job.model_id, Job.kind == job.kind, in_state(JobState.QUEUED))
    following = session.scalar(select(Job).where(*waiting))
    if following is not None:
        enqueue_message(session, following)


def enqueue_adaptation(session: Session, model: Model, request_id: str | None, even_held: bool = False) -> str | None:
    """The id of the job that adapts the model to its head; None while nothing was ever trained on its examples, and
    while the model is held: `holds.resume` makes due what waits. An erasure is carried out `even_held`.

    A training that runs now may have read them already: what comes after must be due, too.
    """
    if model.held_at is not None and not even_held:
        return None
    trained = select(Version.number).where(Version.model_id == model.id)
    at_work = (Job.state.in_((JobState.QUEUED, JobState.RUNNING)), Job.kind != JobKind.ERASE)
    training = select(Job.id).where(Job.model_id == model.id, *at_work)
    if session.scalar(trained.limit(1)) is None and session.scalar(training.limit(1)) is None:
        return None
    return enqueue(session, model, JobKind.ADAPT, request_id).id
