"""The tick: enqueues jobs that are due by the policies, and resends messages about jobs that no worker took.

All decisions are made from the database under the model's lock, so missed, late, repeated or concurrent ticks do no
harm.
"""

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import cache
from typing import NamedTuple

import structlog
from sqlalchemy import ColumnElement, and_, exists, or_, select
from sqlalchemy.orm import Session, aliased

from core.clock import now
from core.database import Database, utc_text
from core.errors import AmendError
from core.jobs import outbox, queue
from core.jobs.outbox import Send
from core.jobs.queries import find_in_state, has_unfinished, is_blocked, last_job
from core.ledger.queries import batched, stored_at
from core.ledger.restrictions import held_removals
from core.models.policy import Policy, duration, policy_of
from core.tables.jobs import Job, JobKind, JobState, Outbox
from core.tables.ledger import Change
from core.tables.models import Model
from core.tables.quality import DriftReport
from core.tables.versions import Version, VersionKind
from core.versions.queries import last_trained, tip_of

QUIET_PERIOD = timedelta(seconds=5)
"""The first training starts once no change has arrived for this long."""
MAX_QUIET_WAIT = timedelta(minutes=10)
"""The first training waits at most this long for a quiet period: examples may never stop arriving."""

log = structlog.get_logger("core")


class Decision(NamedTuple):
    """Whether a job is due, and the reason, for the log."""

    kind: JobKind
    due: bool
    reason: str
    due_at: datetime | None = None
    """The scheduled time, if there is a schedule."""


Decide = Callable[[Session, Model, datetime], list[Decision]]
"""Decides which jobs are due for a model."""
logged: dict[tuple[int, JobKind], str] = {}
"""The last logged reason why no job was due, by model and kind, so that it is not logged at every tick."""


def enqueue_due(database: Database) -> list[str]:
    """Enqueue the jobs that are due by the policies; returns their ids."""
    return enqueue_where(database, is_outdated(), decide_jobs, now())


def enqueue_where(database: Database, condition: ColumnElement[bool], decide: Decide, moment: datetime) -> list[str]:
    """Enqueue what is due for the models that satisfy a condition, which skips thousands of idle models."""
    with database.read() as session:
        found = {model: decide(session, model, moment) for model in session.scalars(select(Model).where(condition))}
    log_reasons(found)
    enqueued = []
    for model in [model for model, decisions in found.items() if any(decision.due for decision in decisions)]:
        try:
            for job_id, decision in enqueue_for(database, model.id, decide, moment):
                enqueued.append(job_id)
                logged.pop((model.id, decision.kind), None)
                log.info("job_enqueued", model=model.name, kind=decision.kind, job=job_id, reason=decision.reason)
        except AmendError as error:  # other models must not wait for this one
            log.warning("job_enqueueing_failed", model=model.name, exc_info=error)
    return enqueued


def enqueue_for(database: Database, model_id: int, decide: Decide, moment: datetime) -> list[tuple[str, Decision]]:
    """Enqueue the jobs that are due for a model, decided under its lock; returns their ids and the decisions."""
    with database.write() as session:
        model = session.get(Model, model_id, with_for_update=True)
        if model is None:
            return []
        due = [decision for decision in decide(session, model, moment) if decision.due]
        return [(queue.enqueue(session, model, d.kind, due_at=d.due_at).id, d) for d in due]


def log_reasons(found: dict[Model, list[Decision]]) -> None:
    """Log why jobs are not due, unless the same reason was logged before."""
    for model, decisions in found.items():
        for decision in decisions:
            if not decision.due and logged.get((model.id, decision.kind)) != decision.reason:
                logged[model.id, decision.kind] = decision.reason
                log.info("job_not_due", model=model.name, kind=decision.kind, reason=decision.reason)


@cache  # building the expression takes longer than running the query
def is_outdated() -> ColumnElement[bool]:
    """Condition on models for which an adaptation or a retrain may be due."""
    tip = aliased(Version)
    current = exists().where(tip.model_id == Model.id, tip.number == Model.tip, tip.position == Model.head)
    covered = Model.covered_position == Model.head
    trained = exists().where(
        Version.model_id == Model.id, Version.kind == VersionKind.TRAINED, Version.position == Model.head
    )
    adapt, retrain = Model.policy["adapt"], Model.policy["retrain"]
    adapts = or_(adapt["after_changes"].as_string().is_not(None), adapt["every"].as_string().is_not(None))
    drifted = exists().where(DriftReport.model_id == Model.id, DriftReport.detected_at.is_not(None))
    retrains = or_(retrain["every"].as_string().is_not(None), and_(retrain["on_drift"].as_boolean(), drifted))
    outdated = or_(and_(adapts, ~current, ~covered), and_(retrains, ~trained))
    begins = and_(Model.tip.is_(None), adapt["after_changes"].as_integer() <= Model.head)
    return or_(and_(Model.tip.is_not(None), outdated), begins)


def due_jobs(session: Session, model: Model, moment: datetime) -> list[tuple[JobKind, datetime | None]]:
    """The jobs that are due by the policy, with their scheduled times."""
    return [(decision.kind, decision.due_at) for decision in decide_jobs(session, model, moment) if decision.due]


def decide_jobs(session: Session, model: Model, moment: datetime) -> list[Decision]:
    """Decide for each kind of job in the policy whether it is due."""
    policy, tip = policy_of(model), tip_of(session, model)
    if model.held_at is not None:
        return [Decision(JobKind.ADAPT, False, "the model is held")]
    if model.train_count == 0:
        return [Decision(JobKind.ADAPT, False, "there are no training examples")]
    if tip is None:
        return [Decision(JobKind.ADAPT, *first_training_due(session, model, policy, moment))]
    found = [Decision(JobKind.ADAPT, *adaptation_due(session, model, tip, policy, moment))]
    due_at, reason = drift_retrain_due(session, model) if policy.retrain.on_drift else (None, "")
    if due_at is None and policy.retrain.every is not None:
        due_at, reason = retrain_due(session, model, duration(policy.retrain.every), moment)
    if reason:
        found.append(Decision(JobKind.RETRAIN, due_at is not None, reason, due_at))
    return found


def first_training_due(session: Session, model: Model, policy: Policy, moment: datetime) -> tuple[bool, str]:
    """Whether there are enough examples for a first training and no more are arriving."""
    if has_unfinished(session, model.id, JobKind.ADAPT, JobKind.RETRAIN):
        return False, "a job is already queued or running"
    enough, waiting = policy.adapt.after_changes, find_backlog(session, model, 0)
    if enough is None:
        return False, "the policy has no rule for a first training"
    # most changes of a withdrawn model are about examples that are gone
    if min(waiting.count, model.train_count + model.holdout_count) < enough:
        return False, "there are too few examples for a first training"
    last = stored_at(session, model.id, model.head)
    longest = min(MAX_QUIET_WAIT, duration(policy.adapt.every)) if policy.adapt.every is not None else MAX_QUIET_WAIT
    waited = waiting.since is not None and moment - waiting.since >= longest
    if last is not None and moment - last < QUIET_PERIOD and not waited:
        return False, "examples are still arriving"
    return True, f"{waiting.count} changes are pending, {enough} suffice for a first training"


def adaptation_due(session: Session, model: Model, tip: Version, policy: Policy, moment: datetime) -> tuple[bool, str]:
    """Whether enough changes are pending, or one for long enough; changes of a running or failed job do not count."""
    if model.head <= max(tip.position, model.covered_position):
        return False, "nothing has changed"
    if find_in_state(session, model.id, JobKind.ADAPT, JobState.QUEUED) is not None:
        return False, "a job is already queued"
    waiting = find_backlog(session, model, tip.position)
    enough, every = policy.adapt.after_changes, policy.adapt.every
    if enough is not None and waiting.count >= enough:
        return True, f"{waiting.count} changes are pending, {enough} suffice"
    if not waiting.count:
        return False, "all pending changes are being processed, failed, or need approval"
    if every is None:
        return False, "too few changes are pending" if enough is not None else "the policy has no rule for adaptations"
    if waiting.since is None or moment - waiting.since < duration(every):
        return False, "too few changes are pending, and none for long enough"
    return True, f"a change has been pending for {every}"


@dataclass(frozen=True)
class Backlog:
    """Changes that no adaptation covers yet."""

    count: int
    since: datetime | None
    """When the first of them arrived, or the last job failed; None if there are none."""


def find_backlog(session: Session, model: Model, since: int) -> Backlog:
    """The changes after the position `since` that are left to the next adaptation.

    Changes that a running job covers, or that the last job failed at, do not count.
    """
    since = max(since, model.covered_position)
    waiting_from = None
    running = find_in_state(session, model.id, JobKind.ADAPT, JobState.RUNNING)
    if running is not None:
        since = max(since, running.to_position)
    last = last_job(session, model.id, JobKind.ADAPT)
    if last is not None and last.state in (JobState.FAILED, JobState.CANCELLED) and last.to_position > since:
        since, waiting_from = last.to_position, last.finished_at
    held = held_removals(session, model.id, since)
    waiting = max(0, model.head - since - len(held))
    if not waiting:
        return Backlog(waiting, None)
    if waiting_from is None:
        later = select(Change).where(Change.model_id == model.id, Change.last > since).order_by(Change.last)
        first = session.scalars(later.limit(len(held) + 1))
        waiting_from = next((c.created_at for c in first if c.last not in held), None)
    return Backlog(waiting, waiting_from)


def retrain_due(session: Session, model: Model, every: timedelta, moment: datetime) -> tuple[datetime | None, str]:
    """The latest due time without a retrain, or None, and the reason.

    Due times are counted from the model's creation. If several were missed, only the latest counts.
    """
    due_at: datetime = model.created_at + (moment - model.created_at) // every * every
    retrains = select(Job.id).where(Job.model_id == model.id, Job.kind == JobKind.RETRAIN)
    waiting = or_(
        Job.due_at >= due_at,
        Job.state == JobState.QUEUED,
        and_(Job.state == JobState.RUNNING, Job.to_position == model.head),
    )
    if session.scalar(retrains.where(waiting).limit(1)) is not None:
        return None, "a retrain is queued, running, or was made in time"
    last = last_trained(session, model.id)
    if last is None or last.created_at >= due_at:
        return None, "the last retrain is recent enough"
    if model.head - last.position == len(held_removals(session, model.id, last.position)):
        return None, "nothing has changed since the last retrain"
    return due_at, f"a retrain was due at {utc_text(due_at)}"


def drift_retrain_due(session: Session, model: Model) -> tuple[datetime | None, str]:
    """When drift was detected, if no retrain has been made or enqueued since, or None, and the reason."""
    report = session.get(DriftReport, model.id)
    detected_at = report.detected_at if report else None
    if detected_at is None:
        return None, "no drift has been detected"
    later = or_(Job.due_at >= detected_at, Job.created_at >= detected_at, Job.state == JobState.QUEUED)
    retrains = select(Job.id).where(Job.model_id == model.id, Job.kind == JobKind.RETRAIN, later)
    if session.scalar(retrains.limit(1)) is not None:
        return None, "a retrain was enqueued since drift was detected"
    return detected_at, f"drift was detected at {utc_text(detected_at)}"


def reconcile(database: Database, send: Send, timeout: float) -> int:
    """Send pending messages, and resend those about jobs that no worker took or whose worker was lost.

    Returns how many were sent. The broker may lose messages, so they are resent after `timeout` seconds.
    """
    sent = outbox.flush(database, send)
    long_ago = now() - timedelta(seconds=timeout)
    with database.read() as session:
        silent = or_(Job.sent_at.is_(None), Job.sent_at < long_ago)
        enqueued = exists().where(Outbox.job_id == Job.id)
        forgotten = and_(Job.state == JobState.QUEUED, ~is_blocked(), ~enqueued, silent)
        lost = and_(
            Job.state == JobState.RUNNING, Job.lease_expires_at < now(), or_(silent, Job.sent_at < Job.lease_expires_at)
        )
        found = session.execute(
            select(Job.id, Job.queue, Job.state, Job.sent_at, Job.created_at).where(or_(forgotten, lost))
        )
        rows = [row for row in found if row.state is JobState.RUNNING or may_resend(row.sent_at, row.created_at)]
    for row in rows:
        log.info("job_resent", job=row.id, state=row.state)
        send(row.id, row.queue)
    for some in batched(rows):
        with database.write() as session:
            outbox.mark_sent(session, [row.id for row in some])
    return sent + len(rows)


def may_resend(sent_at: datetime | None, created_at: datetime) -> bool:
    """Whether to resend the message about a queued job: at intervals that grow with the time it has been waiting."""
    return sent_at is None or now() - sent_at >= (now() - created_at) / 2
