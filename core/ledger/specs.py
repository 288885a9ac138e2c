"""The spec of a model, which changes as its examples do."""

from __future__ import annotations

from typing import Any

from sqlalchemy import select
from sqlalchemy.orm import Session

from core.ledger.tables import Change


def spec_at(session: Session, model_id: int, spec: dict[str, Any], at: int) -> dict[str, Any]:
    """The spec in force at a position: as created, with the changes up to there."""
    changes = select(Change).where(Change.model_id == model_id, Change.value.is_not(None), Change.last <= at)
    return {**spec, **{c.kind.value: c.value for c in session.scalars(changes.order_by(Change.last))}}
