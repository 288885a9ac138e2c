"""Queries about jobs, the messages about them, and workers."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import cache

from sqlalchemy import ColumnElement, Select, and_, bindparam, case, exists, func, select
from sqlalchemy.orm import Session, aliased

from core.clock import now
from core.errors import Conflict, NotFound
from core.ids import find_by_id
from core.paging import invalid_cursor, page_after
from core.tables.jobs import Job, JobKind, JobState, Outbox, Worker, in_state
from core.tables.models import Model

UNFINISHED = (JobState.QUEUED, JobState.RUNNING)


def find_job(session: Session, id: str, visible: Collection[str] | None) -> tuple[Job, Model]:
    """A job, by its id or a prefix of it, and its model.

    Raises NotFound if the model is not among the visible ones (None: all), and Conflict if the prefix is ambiguous.
    """
    query = select(Job, Model).join(Model, Job.model_id == Model.id)
    found = find_by_id(session, query if visible is None else query.where(Model.name.in_(visible)), Job.id, id)
    if found is None:
        raise NotFound("job_not_found", "Job not found.")
    job, model = found
    return job, model


def page_jobs(
    session: Session,
    visible: Collection[str] | None,
    model: Model | None,
    state: JobState | None,
    kind: JobKind | None,
    after: str | None,
    limit: int,
) -> list[tuple[Job, str]]:
    """Jobs with the names of their models, newest first, after the job `after`. Raises Invalid if it does not exist."""
    query = select(Job, Model.name).join(Model, Job.model_id == Model.id)
    if visible is not None:
        query = query.where(Model.name.in_(visible))
    if model is not None:
        query = query.where(Job.model_id == model.id)
    if state is not None:
        query = query.where(Job.state == state)
    if kind is not None:
        query = query.where(Job.kind == kind)
    try:
        last = None if after is None else find_job(session, after, visible)[0]
    except (NotFound, Conflict):  # also for a job that the caller cannot see: the error must not reveal it
        raise invalid_cursor() from None
    if last is not None and last.id != after:
        raise invalid_cursor()
    key = (last.created_at, last.id) if last is not None else None
    found = session.execute(page_after(query, (Job.created_at, Job.id), key, limit))
    return [(job, name) for job, name in found]


def find_in_state(session: Session, model_id: int, kind: JobKind, state: JobState) -> Job | None:
    """The queued or running job of a model and kind; there is at most one of each, except queued analyses."""
    return session.scalar(select_in_state(state), {"model": model_id, "kind": kind})


def find_oldest_queued(session: Session, model_id: int, kind: JobKind) -> Job | None:
    """The queued job of a model and kind that was enqueued first; only analyses can have several."""
    return session.scalar(select_oldest_queued(), {"model": model_id, "kind": kind})


@cache  # building the statement takes longer than running it
def select_in_state(state: JobState) -> Select[Job]:
    """Query for the jobs of a model and kind in a state."""
    return select(Job).where(Job.model_id == bindparam("model"), Job.kind == bindparam("kind"), in_state(state))


@cache
def select_oldest_queued() -> Select[Job]:
    return select_in_state(JobState.QUEUED).order_by(Job.created_at, Job.id).limit(1)


def last_job(session: Session, model_id: int, kind: JobKind) -> Job | None:
    """The most recently enqueued job of a model and kind."""
    jobs = select(Job).where(Job.model_id == model_id, Job.kind == kind)
    return session.scalar(jobs.order_by(Job.created_at.desc()).limit(1))


def has_unfinished(session: Session, model_id: int, *kinds: JobKind) -> bool:
    """Whether a job of these kinds is queued or running."""
    jobs = select(Job.id).where(Job.model_id == model_id, Job.kind.in_(kinds), Job.state.in_(UNFINISHED))
    return session.scalar(jobs.limit(1)) is not None


def unfinished_jobs(session: Session, model_id: int) -> Sequence[Job]:
    """The queued and running jobs of a model, in the order in which they were enqueued."""
    jobs = select(Job).where(Job.model_id == model_id, Job.state.in_(UNFINISHED))
    return session.scalars(jobs.order_by(Job.created_at)).all()


@cache  # building the expression takes longer than running the query
def is_blocked() -> ColumnElement[bool]:
    """Condition on jobs that cannot start because another job of the same model and kind is running."""
    other = aliased(Job)
    return exists().where(other.model_id == Job.model_id, other.kind == Job.kind, other.state == JobState.RUNNING)


def abandoned_jobs(session: Session, job: Job) -> Sequence[str]:
    """Ids of other jobs of the same model and kind whose leases have expired."""
    same = (Job.model_id == job.model_id, Job.kind == job.kind, Job.id != job.id)
    return session.scalars(
        select(Job.id).where(*same, Job.state == JobState.RUNNING, Job.lease_expires_at < now())
    ).all()


def retrain_ids(session: Session, model_id: int) -> frozenset[str]:
    """Ids of a model's retrain jobs."""
    return frozenset(session.scalars(select(Job.id).where(Job.model_id == model_id, Job.kind == JobKind.RETRAIN)))


def unsent_messages(session: Session, limit: int) -> list[tuple[int, str, str]]:
    """Messages that are not sent yet, oldest first: their ids, and the ids and queues of their jobs."""
    found = session.execute(select_unsent(), {"limit": limit})
    return [(id, job_id, queue) for id, job_id, queue in found]


@cache  # building the statement takes longer than running it
def select_unsent() -> Select[int, str, str]:
    query = select(Outbox.id, Job.id, Job.queue).join(Job, Job.id == Outbox.job_id)
    return query.order_by(Outbox.id).limit(bindparam("limit"))


@dataclass(frozen=True)
class JobCount:
    """Number of jobs of one kind and state whose durations fall into the same bucket."""

    kind: JobKind
    state: JobState
    queue: str
    bucket: int
    """Index of the first limit that is not exceeded, or the number of limits; -1 without a duration."""
    count: int
    seconds: float
    """Their total duration."""
    oldest: datetime
    """When the first of them was enqueued."""
    abandoned: int
    """How many of them run, but have a worker that has stopped extending its lease."""


def count_jobs(session: Session, limits: Sequence[float]) -> list[JobCount]:
    """Numbers of jobs by kind, state, queue and duration."""
    reached = [(Job.seconds <= limit, i) for i, limit in enumerate(limits)]
    bucket = case((Job.seconds.is_(None), -1), *reached, else_=len(limits)).label("bucket")
    spent = func.coalesce(func.sum(Job.seconds), 0.0)
    is_abandoned = and_(Job.state == JobState.RUNNING, Job.lease_expires_at < now())
    abandoned = func.coalesce(func.sum(case((is_abandoned, 1), else_=0)), 0)
    query = select(Job.kind, Job.state, Job.queue, bucket, func.count(), spent, func.min(Job.created_at), abandoned)
    return [JobCount(*row) for row in session.execute(query.group_by(Job.kind, Job.state, Job.queue, bucket))]


def count_messages_and_workers(session: Session, since: datetime) -> tuple[int, int]:
    """The number of unsent messages, and of workers with a heartbeat since a time."""
    unsent = select(func.count()).select_from(Outbox).scalar_subquery()
    alive = select(func.count()).where(Worker.seen_at > since).scalar_subquery()
    found = session.execute(select(unsent, alive)).one()
    return found[0], found[1]


def last_heartbeat(session: Session) -> datetime | None:
    """The time of the latest heartbeat of any worker."""
    return session.scalar(select(func.max(Worker.seen_at)))
