"""Looking up rows by an id or a unique beginning of it, as people type it."""

from __future__ import annotations

from typing import TypeVarTuple

from sqlalchemy import Row, Select
from sqlalchemy.orm import InstrumentedAttribute, Session

from core.errors import Conflict

MIN_PREFIX_LENGTH = 6
"""Characters of an id that are enough to look it up."""

Ts = TypeVarTuple("Ts")


def find_by_id(session: Session, query: Select[*Ts], column: InstrumentedAttribute[str], id: str) -> Row[*Ts] | None:
    """The row with an id, or whose id begins like that; None if there is none. Raises Conflict if there are several."""
    if not id.isprintable():
        return None
    found = session.execute(query.where(column == id)).first()
    if found is not None or len(id) < MIN_PREFIX_LENGTH:
        return found
    begins = column.startswith(id.lower(), autoescape=True)  # as ids are, and as SQLite takes them all the same
    some = session.execute(query.where(begins).limit(2)).all()
    if len(some) > 1:
        raise Conflict("id_ambiguous", f"Several ids begin with {id}; give more of the one that you mean.")
    return some[0] if some else None
