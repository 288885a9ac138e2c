"""Scheduled tuning: `policy.tune.every` enqueues cross-validations of several penalties, which suggest one of them."""

from datetime import datetime

import structlog
from sqlalchemy import ColumnElement, and_, select
from sqlalchemy.orm import Session

from core.analyses import records
from core.analyses.fitted_features import has_fitted_features
from core.analyses.tuning_values import default_deltas
from core.clock import now
from core.database import Database
from core.jobs import queue
from core.ledger.spec_history import spec_at
from core.models.policy import duration, policy_of
from core.tables.analyses import Analysis, AnalysisKind
from core.tables.jobs import Job, JobKind
from core.tables.models import Model
from core.versions.erased_examples import open_parts

FOLDS = 10

log = structlog.get_logger("core")


def enqueue_due(database: Database) -> list[str]:
    """Enqueue the tunings that are due by the policies; returns the ids of their jobs."""
    moment, enqueued = now(), []
    with database.read() as session:
        found = [
            model.id for model in session.scalars(select(Model).where(tunes())) if find_due(session, model, moment)
        ]
    for model_id in found:
        with database.write() as session:
            model = session.get(Model, model_id, with_for_update=True)
            due_at = None if model is None else find_due(session, model, moment)
            if model is None or due_at is None:
                continue
            values = default_deltas(spec_at(session, model.id, model.spec, model.head))
            # examples of a person in several folds would make weak penalties look too good
            by = policy_of(model).holdout_draw.by
            request = {"parameter": "regularizer.delta", "values": values, "folds": FOLDS, "by": by}
            job = queue.enqueue_analysis(session, model, None, None, due_at)
            request[records.SCHEDULED] = True
            records.create(session, model, AnalysisKind.TUNING, request, None, job.id)
            enqueued.append(job.id)
            log.info("job_enqueued", model=model.name, kind=job.kind, job=job.id, reason="a tuning was due")
    return enqueued


def tunes() -> ColumnElement[bool]:
    """Condition on models that have a version and are tuned by their policy."""
    return and_(Model.policy["tune"]["every"].as_string().is_not(None), Model.tip.is_not(None))


def find_due(session: Session, model: Model, moment: datetime) -> datetime | None:
    """When a tuning was due that has not been made, counted from the model's creation; None if there is nothing to do.

    Nothing is to be done if the model has not changed since its last tuning, and while people are being erased.
    """
    every = policy_of(model).tune.every
    if every is None or model.held_at is not None or model.train_count < FOLDS:
        return None
    due_at: datetime = model.created_at + (moment - model.created_at) // duration(every) * duration(every)
    if due_at <= model.created_at or open_parts(session, model.id):
        return None
    if has_fitted_features(spec_at(session, model.id, model.spec, model.head)):
        return None
    made = select(Job.id).where(Job.model_id == model.id, Job.kind == JobKind.ANALYSE, Job.due_at >= due_at)
    if session.scalar(made.limit(1)) is not None:
        return None
    ours = (Analysis.model_id == model.id, Analysis.kind == AnalysisKind.TUNING.value, Analysis.requested_by.is_(None))
    last = session.scalar(select(Analysis).where(*ours).order_by(Analysis.created_at.desc()).limit(1))
    if last is not None and (last.position or 0) >= model.head:
        return None
    return due_at
