"""When a model needs an `erase` job. The tick checks this, as `core.jobs.due_jobs` checks the policies."""

from datetime import datetime

from sqlalchemy import ColumnElement, exists, or_, select
from sqlalchemy.orm import Session

from core.clock import now
from core.database import Database
from core.jobs.due_jobs import Decision, enqueue_where
from core.jobs.queries import has_unfinished
from core.lifecycle.removed_examples import has_removed_examples, may_have_unneeded
from core.tables.erasures import OPEN, ErasureState, Part
from core.tables.jobs import JobKind
from core.tables.models import Model
from core.tables.versions import Version
from core.versions.erased_examples import open_parts


def enqueue_due(database: Database) -> list[str]:
    """Enqueue a job for each model that has something to erase; returns the ids of the jobs."""
    moment = now()
    return enqueue_where(database, may_have_to_erase(moment), decide_erase, moment)


def may_have_to_erase(moment: datetime) -> ColumnElement[bool]:
    """Condition on models that have removed examples to delete, open erasures, or versions due to be purged."""
    erased = exists().where(Part.model_id == Model.id, Part.state.in_(OPEN))
    kept = exists().where(Version.model_id == Model.id, Version.purge_at <= moment)
    return or_(may_have_unneeded(), erased, kept)


def decide_erase(session: Session, model: Model, moment: datetime) -> list[Decision]:
    """An `erase` job is due if an erasure is open, removed examples can be deleted, or a version's retention ended."""
    if has_unfinished(session, model.id, JobKind.ERASE):
        return []
    expired = select(Version.number).where(Version.model_id == model.id, Version.purge_at <= moment)
    if any(part.state is not ErasureState.FAILED for part, _ in open_parts(session, model.id)):
        reason = "an erasure is open"
    elif has_removed_examples(session, model):
        reason = "removed examples can be deleted"
    elif session.scalar(expired.limit(1)) is not None:
        reason = "the retention period of a version has ended"
    else:
        return []
    return [Decision(JobKind.ERASE, True, reason)]
