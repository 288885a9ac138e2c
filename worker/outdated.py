"""Whether what a job makes would know somebody who is being erased."""

from __future__ import annotations

from sqlalchemy import select
from sqlalchemy.orm import Session

from core.tables.erasures import Erasure, ErasureState, Part


class Outdated(Exception):
    """What is made must not be recorded: another version became the tip, or a person was erased meanwhile."""


def knows_erased(session: Session, model_id: int, at: int) -> bool:
    """Whether the ledger up to a position holds somebody who was erased after that."""
    knows = (Part.model_id == model_id, Part.first <= at, Part.removed > at)
    refused = Erasure.state == ErasureState.REFUSED
    query = select(Part.model_id).join(Erasure, Erasure.id == Part.erasure_id).where(*knows, ~refused)
    return session.scalar(query.limit(1)) is not None
