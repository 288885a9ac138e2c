"""Restricted examples, which a held request took out of force, and removals of them meanwhile."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sqlalchemy import select
from sqlalchemy.orm import InstrumentedAttribute, Session

from core.erasure.queries import open_parts
from core.ledger.queries import batched
from core.tables.erasures import ErasureState
from core.tables.ledger import Example
from core.tables.models import Model


def lift_restrictions(
    session: Session, model: Model, column: InstrumentedAttribute[Any], values: Sequence[Any]
) -> set[Any]:
    """Have restricted examples that are removed now stay out, should the request be refused.

    Which of `values` (ids or subjects, in their stored form) they had.
    """
    found: set[Any] = set()
    for part, _ in open_parts(session, model.id, (ErasureState.HELD,)):
        rows: dict[int, Any] = {}
        for some in batched(part.restricted):
            in_model = (Example.model_id == model.id, Example.position.in_(some), column.in_(list(values)))
            found_here = session.execute(select(Example.position, column).where(*in_model))
            rows.update((at, value) for at, value in found_here)
        if rows:
            part.restricted = [position for position in part.restricted if position not in rows]
            found |= set(rows.values())
    return found


def lift_restrictions_until(session: Session, model: Model, position: int) -> None:
    """Have restricted examples up to a position, which have expired, stay out of force as well."""
    for part, _ in open_parts(session, model.id, (ErasureState.HELD,)):
        if part.restricted and min(part.restricted) <= position:
            part.restricted = [at for at in part.restricted if at > position]
