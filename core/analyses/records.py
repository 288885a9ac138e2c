"""Stored analyses: creating, finding, finishing and deleting them."""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from typing import Any

from sqlalchemy import delete, func, or_, select
from sqlalchemy.orm import Session

from core.clock import now
from core.database import rows_changed
from core.errors import NotFound
from core.paging import invalid_cursor, page_after
from core.tables.analyses import Analysis, AnalysisKind
from core.tables.models import Model

SCHEDULED = "scheduled"
"""Parameter of a tuning that the policy requested: its suggestion may be applied."""
SENT_DATA = ("add", "inputs")
"""Parameters that contain data which the caller sent. They are kept only while a job needs them."""


def create(
    session: Session,
    model: Model,
    kind: AnalysisKind,
    request: dict[str, Any],
    by: str | None,
    job_id: str | None = None,
) -> Analysis:
    """Store a new analysis; `by` is the id of the key that requested it, None for the policy."""
    analysis = Analysis(id=str(uuid.uuid4()), model_id=model.id, kind=kind.value, request=request)
    analysis.requested_by, analysis.job_id, analysis.created_at = by, job_id, now()
    session.add(analysis)
    return analysis


def finish(analysis: Analysis, position: int, version: int, result: dict[str, Any], cost: dict[str, Any]) -> None:
    """Store the result, and delete the data that the caller sent."""
    analysis.position, analysis.version = position, version
    analysis.result, analysis.cost, analysis.finished_at = result, cost, now()
    analysis.request = {name: value for name, value in analysis.request.items() if name not in SENT_DATA}


def find(session: Session, model: Model, id: str) -> Analysis:
    found = session.get(Analysis, id) if id.isprintable() else None
    if found is None or found.model_id != model.id:
        raise NotFound("analysis_not_found", "Analysis not found. An erasure or a removal may have deleted it.")
    return found


def find_of_job(session: Session, job_id: str) -> Analysis | None:
    return session.scalar(select(Analysis).where(Analysis.job_id == job_id))


def page(
    session: Session, model: Model, kind: AnalysisKind | None, after: str | None, limit: int
) -> Sequence[Analysis]:
    """The analyses of a model, newest first, after the analysis `after`."""
    query = select(Analysis).where(Analysis.model_id == model.id)
    if kind is not None:
        query = query.where(Analysis.kind == kind.value)
    key = None
    if after is not None:
        last = session.get(Analysis, after) if after.isprintable() else None
        if last is None or last.model_id != model.id:
            raise invalid_cursor()
        key = (last.created_at, last.id)
    return session.scalars(page_after(query, (Analysis.created_at, Analysis.id), key, limit)).all()


def delete_analyses(session: Session, model_id: int, before: int | None = None) -> int:
    """Delete the analyses of a model: all of them, or those at earlier positions than `before`; returns how many."""
    query = delete(Analysis).where(Analysis.model_id == model_id)
    if before is not None:
        query = query.where(or_(Analysis.position < before, Analysis.position.is_(None) & Analysis.job_id.is_(None)))
    return rows_changed(session, query)


def count_before(session: Session, model_id: int, position: int) -> int:
    """How many analyses of a model used examples from before a position."""
    query = select(func.count()).where(Analysis.model_id == model_id, Analysis.position < position)
    return session.scalar(query) or 0
