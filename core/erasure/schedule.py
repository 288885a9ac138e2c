"""When a model needs a job that erases: checked by the tick, as `core.jobs.schedule` checks the policies."""

from __future__ import annotations

from datetime import datetime

from sqlalchemy import ColumnElement, exists, or_, select
from sqlalchemy.orm import Session

from core.database import Database, now
from core.erasure.purge import has_removed_examples
from core.erasure.queries import open_parts
from core.jobs.queries import has_unfinished
from core.jobs.schedule import Decision, enqueue_where
from core.tables.erasures import OPEN, ErasureState, Part
from core.tables.jobs import JobKind
from core.tables.ledger import HAS_CONTENT, Example
from core.tables.models import Model
from core.tables.versions import Version


def enqueue_due(database: Database) -> list[str]:
    """Enqueue a job for each model that has something to erase; returns the ids of the jobs."""
    moment = now()
    return enqueue_where(database, may_have_to_erase(moment), decide, moment)


def may_have_to_erase(moment: datetime) -> ColumnElement[bool]:
    """Condition on models that have removed examples, open erasures, or versions due to be purged."""
    removed = exists().where(Example.model_id == Model.id, Example.removed.is_not(None), HAS_CONTENT)
    erased = exists().where(Part.model_id == Model.id, Part.state.in_(OPEN))
    kept = exists().where(Version.model_id == Model.id, Version.purge_at <= moment)
    return or_(removed, erased, kept)


def due_jobs(session: Session, model: Model, moment: datetime) -> list[tuple[JobKind, datetime | None]]:
    """The job that erases, if it is due."""
    return [(decision.kind, decision.due_at) for decision in decide(session, model, moment)]


def decide(session: Session, model: Model, moment: datetime) -> list[Decision]:
    """A job that erases is due if an erasure waits for one, removed examples can be deleted, or a kept version's time
    is over."""
    if has_unfinished(session, model.id, JobKind.ERASE):
        return []
    over = select(Version.number).where(Version.model_id == model.id, Version.purge_at <= moment)
    if any(part.state is not ErasureState.FAILED for part, _ in open_parts(session, model.id)):
        why = "an erasure waits for it"
    elif has_removed_examples(session, model):
        why = "removed examples can be deleted"
    elif session.scalar(over.limit(1)) is not None:
        why = "a version was kept for long enough"
    else:
        return []
    return [Decision(JobKind.ERASE, True, why)]
