"""Restricted examples: those that a held erasure request or a restriction of processing took out of force, and would
put back if it is refused or lifted.
"""

from collections.abc import Sequence
from typing import Any

import sqlalchemy as sa
from sqlalchemy import ColumnElement, select
from sqlalchemy.orm import InstrumentedAttribute, Session

from core.ledger.queries import batched
from core.tables.erasures import OPEN, WAITING, Erasure, ErasureState, Part
from core.tables.ledger import Example
from core.tables.models import Model

HELD = ErasureState.HELD


def waiting_parts(session: Session, model_id: int) -> Sequence[Part]:
    """A model's parts of held erasures and of restrictions."""
    parts = select(Part).join(Erasure, Erasure.id == Part.erasure_id)
    waiting = (Part.state.in_(WAITING), Erasure.state.in_(WAITING))
    return session.scalars(parts.where(Part.model_id == model_id, *waiting)).all()


def restricted_by(session: Session, model_id: int, states: Sequence[ErasureState]) -> list[int]:
    """Positions of the examples that requests in these states took out of force."""
    lists = select(Part.restricted).join(Erasure, Erasure.id == Part.erasure_id)
    found = session.scalars(lists.where(Part.model_id == model_id, Part.state.in_(states), Erasure.state.in_(states)))
    return [position for positions in found for position in positions]


def claimed_positions(session: Session, model_id: int) -> sa.BindParameter[Any]:
    """Positions of the examples that open requests deal with: those of a held erasure or a restriction may return into
    force, and the others are deleted and counted by their erasures."""
    positions = restricted_by(session, model_id, WAITING)
    claimed = select(Part.positions).join(Erasure, Erasure.id == Part.erasure_id)
    being_erased = (Part.model_id == model_id, Part.state.in_(OPEN), Erasure.state.in_(OPEN))
    positions += [position for found in session.scalars(claimed.where(*being_erased)) for position in found]
    # as literals: SQLite allows no more than 32 766 parameters
    return sa.bindparam("claimed", positions, sa.BigInteger, expanding=True, literal_execute=True)


def held_removals(session: Session, model_id: int, since: int) -> set[int]:
    """Positions after `since` at which a held erasure took examples out of force.

    They make no job due: the model changes when the erasure is approved. A restriction does: it applies at once.
    """
    found: set[int] = set()
    for positions in batched(restricted_by(session, model_id, [HELD])):
        taken = select(Example.removed).where(Example.model_id == model_id, Example.position.in_(positions))
        found.update(at for at in session.scalars(taken.where(Example.removed > since)) if at is not None)
    return found


def lift_restrictions(
    session: Session, model: Model, column: InstrumentedAttribute[Any], selected: ColumnElement[bool]
) -> set[Any]:
    """Remove restricted examples for good, so that the end of the request does not restore them.

    `selected` is a condition on the examples; returns the values of `column` that restricted examples had.
    """
    found: set[Any] = set()
    for part in waiting_parts(session, model.id):
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
    for part in waiting_parts(session, model.id):
        if part.restricted and min(part.restricted) <= position:
            part.restricted = [at for at in part.restricted if at > position]
