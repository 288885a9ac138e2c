"""Restricted examples: those that a held erasure request took out of force, and would put back if it is refused."""

from collections.abc import Sequence
from typing import Any

import sqlalchemy as sa
from sqlalchemy import ColumnElement, select
from sqlalchemy.orm import InstrumentedAttribute, Session

from core.ledger.queries import batched
from core.tables.erasures import Erasure, ErasureState, Part
from core.tables.ledger import Example
from core.tables.models import Model

HELD = ErasureState.HELD


def held_parts(session: Session, model_id: int) -> Sequence[Part]:
    """A model's parts of held erasures."""
    parts = select(Part).join(Erasure, Erasure.id == Part.erasure_id)
    return session.scalars(parts.where(Part.model_id == model_id, Part.state == HELD, Erasure.state == HELD)).all()


def restricted_positions(session: Session, model_id: int) -> sa.BindParameter[Any]:
    """Positions of restricted examples, which must be kept as long as the request may be refused."""
    positions = [position for part in held_parts(session, model_id) for position in part.restricted]
    # as literals: SQLite allows no more than 32 766 parameters
    return sa.bindparam("restricted", positions, sa.BigInteger, expanding=True, literal_execute=True)


def held_removals(session: Session, model_id: int, since: int) -> set[int]:
    """Positions after `since` at which a held erasure took examples out of force.

    They make no job due: the model changes when the erasure is approved.
    """
    found: set[int] = set()
    for positions in batched([position for part in held_parts(session, model_id) for position in part.restricted]):
        taken = select(Example.removed).where(Example.model_id == model_id, Example.position.in_(positions))
        found.update(at for at in session.scalars(taken.where(Example.removed > since)) if at is not None)
    return found


def lift_restrictions(
    session: Session, model: Model, column: InstrumentedAttribute[Any], selected: ColumnElement[bool]
) -> set[Any]:
    """Remove restricted examples for good, so that refusing the request does not restore them.

    `selected` is a condition on the examples; returns the values of `column` that restricted examples had.
    """
    found: set[Any] = set()
    for part in held_parts(session, model.id):
        rows: dict[int, Any] = {}
        for positions in batched(part.restricted):
            in_model = (Example.model_id == model.id, Example.position.in_(positions), selected)
            rows.update((at, value) for at, value in session.execute(select(Example.position, column).where(*in_model)))
        if rows:
            part.restricted = [position for position in part.restricted if position not in rows]
            found |= set(rows.values())
    return found


def lift_restrictions_until(session: Session, model: Model, position: int) -> None:
    """Remove restricted examples up to a position for good, because they have expired."""
    for part in held_parts(session, model.id):
        if part.restricted and min(part.restricted) <= position:
            part.restricted = [at for at in part.restricted if at > position]
