"""The spec of a model, which changes as its examples do."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from sqlalchemy import select
from sqlalchemy.orm import Session

from core.errors import Conflict, Invalid, NotFound
from core.ledger import positions
from core.ledger.positions import Counts
from core.tables.ledger import Change, ChangeKind
from core.tables.models import Model


def spec_at(session: Session, model_id: int, spec: dict[str, Any], at: int) -> dict[str, Any]:
    """The spec in force at a position: as created, with the changes up to there."""
    return specs_at(session, model_id, spec, [at])[at]


def specs_at(
    session: Session, model_id: int, spec: dict[str, Any], positions: Collection[int]
) -> dict[int, dict[str, Any]]:
    """The specs in force at some positions, read at once."""
    last = max(positions, default=0)
    changes = select(Change).where(Change.model_id == model_id, Change.value.is_not(None), Change.last <= last)
    found = session.scalars(changes.order_by(Change.last)).all()
    return {at: {**spec, **{c.kind.value: c.value for c in found if c.last <= at}} for at in set(positions)}


def spec_changes(session: Session, model: Model, before: int, limit: int) -> list[Change]:
    """The last changes of a model's spec before a position, the newest first."""
    ours = select(Change).where(Change.model_id == model.id, Change.value.is_not(None), Change.last < before)
    return list(session.scalars(ours.order_by(Change.last.desc()).limit(limit)))


def value_before(session: Session, model: Model, position: int) -> tuple[ChangeKind, dict[str, Any]]:
    """What a change of the spec changed, and what that was before: reverting it makes it so again."""
    there = select(Change).where(Change.model_id == model.id, Change.first <= position, Change.last >= position)
    change = session.scalar(there)
    if change is None:
        raise NotFound("change_not_found", f"The ledger has no position {position}; its last one is {model.head}.")
    if change.value is None:
        message = f"position {position} is an example {change.kind.value}: only changes of the model can be reverted"
        raise Invalid.at(("revert",), "change_irreversible", message)
    before: dict[str, Any] = spec_at(session, model.id, model.spec, position - 1)[change.kind.value]
    if before == spec_at(session, model.id, model.spec, model.head)[change.kind.value]:
        raise Conflict("change_reverted", f"The {change.kind.value} is already what it was before position {position}.")
    return change.kind, before


def change_spec(session: Session, model: Model, kind: ChangeKind, value: dict[str, Any]) -> int:
    """Record a new regularizer or architecture of a locked model; its position."""
    return positions.take(session, model, kind, 1, Counts(), value)
