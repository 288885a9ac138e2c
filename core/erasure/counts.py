"""How many erasures there are: figures for those who watch."""

from __future__ import annotations

from sqlalchemy import func, select
from sqlalchemy.orm import Session

from core.database import now
from core.tables.erasures import PENDING, Erasure, ErasureState


def count_erasures(session: Session) -> list[tuple[ErasureState, int]]:
    """How many there are, by state."""
    found = session.execute(select(Erasure.state, func.count()).group_by(Erasure.state))
    return [(ErasureState(state), count) for state, count in found]


def count_overdue(session: Session) -> int:
    """How many are past their due date."""
    late = select(func.count()).where(Erasure.state.in_(PENDING), Erasure.due_at < now())
    return session.scalar(late) or 0
