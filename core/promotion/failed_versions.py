"""Versions that failed the promotion gate and were promoted all the same, because removals, corrections, requested
changes and models whose gate only warns are never rejected. Pages and metrics show them until a person or a retrain
confirms another version: somebody may have poisoned the model by corrections.
"""

from __future__ import annotations

from sqlalchemy import select
from sqlalchemy.orm import Session

from core.promotion.decision import Requester
from core.tables.models import Model
from core.tables.versions import Promotion, Version

JOBS = (Requester.POLICY.value, Requester.ERASURE.value)
"""Who promotes versions without a person's decision."""


def failed_in_service(session: Session, model_id: int | None = None) -> dict[int, int]:
    """By model: the number of the champion, or else of the last confirmed version, if it failed the gate.

    Versions that a person promoted or accepted do not count.
    """
    current = Version.number.in_((Model.champion, Model.confirmed))
    by_person = select(Promotion.id).where(Promotion.model_id == Version.model_id, Promotion.version == Version.number)
    query = (
        select(Version.model_id, Version.number)
        .join(Model, Model.id == Version.model_id)
        .where(current, Version.gate["passed"].as_boolean().is_(False))
        .where(~by_person.where(Promotion.by.not_in(JOBS)).exists())
        .order_by(Version.number)
    )
    if model_id is not None:
        query = query.where(Version.model_id == model_id)
    return {found.model_id: found.number for found in session.execute(query)}
