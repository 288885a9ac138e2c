"""The spec of a model, which changes as its examples do."""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING, cast

from sqlalchemy import select
from sqlalchemy.orm import Session

from core.errors import Conflict, Invalid, NotFound
from core.ledger import positions
from core.ledger.positions import Counts
from core.tables.ledger import Change, ChangeKind
from core.tables.models import Model

if TYPE_CHECKING:  # the scheduler does without torch
    from core.kprior.model.spec import Spec, SpecPart


def spec_at(session: Session, model_id: int, spec: Spec, at: int) -> Spec:
    """The spec in force at a position: as created, with the changes up to there."""
    return specs_at(session, model_id, spec, [at])[at]


def specs_at(session: Session, model_id: int, spec: Spec, positions: Collection[int]) -> dict[int, Spec]:
    """The specs in force at some positions, read at once."""
    last = max(positions, default=0)
    changes = select(Change).where(Change.model_id == model_id, Change.value.is_not(None), Change.last <= last)
    found = session.scalars(changes.order_by(Change.last)).all()

    def at_position(at: int) -> Spec:
        return cast("Spec", {**spec, **{change.kind.value: change.value for change in found if change.last <= at}})

    return {at: at_position(at) for at in set(positions)}


def part_of(spec: Spec, kind: ChangeKind) -> SpecPart:
    """What a change of this kind changes."""
    return spec["regularizer"] if kind is ChangeKind.REGULARIZER else spec["architecture"]


def with_part(spec: Spec, kind: ChangeKind, value: SpecPart) -> Spec:
    """The spec after a change."""
    return cast("Spec", {**spec, kind.value: value})


def page_changes(session: Session, model: Model, before: int, limit: int) -> list[Change]:
    """The last changes of a model's spec, and corrections of examples, before a position, the newest first."""
    ours = select(Change).where(Change.model_id == model.id, Change.last < before)
    ours = ours.order_by(Change.last.desc()).limit(limit)
    # each has an index of its own, among the many batches that are neither
    found = [*session.scalars(ours.where(Change.value.is_not(None)))]
    found += session.scalars(ours.where(Change.kind == ChangeKind.REPLACED))
    return sorted(found, key=lambda change: change.last, reverse=True)[:limit]


def value_before(session: Session, model: Model, position: int) -> tuple[ChangeKind, SpecPart]:
    """What a change of the spec changed, and what that was before: reverting it makes it so again."""
    there = select(Change).where(Change.model_id == model.id, Change.first <= position, Change.last >= position)
    change = session.scalar(there)
    if change is None:
        raise NotFound("change_not_found", f"The ledger has no position {position}; its last one is {model.head}.")
    if change.value is None:
        message = f"position {position} is an example {change.kind.value}: only changes of the model can be reverted"
        raise Invalid.at(("revert",), "change_irreversible", message)
    before = part_of(spec_at(session, model.id, model.spec, position - 1), change.kind)
    if before == part_of(spec_at(session, model.id, model.spec, model.head), change.kind):
        raise Conflict("change_reverted", f"The {change.kind.value} is already what it was before position {position}.")
    return change.kind, before


def change_spec(session: Session, model: Model, kind: ChangeKind, value: SpecPart) -> int:
    """Record a new regularizer or architecture of a locked model; its position."""
    return positions.take(session, model, kind, 1, Counts(), value)
