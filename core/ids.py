"""Looking up rows by an id or a unique prefix of it."""

from typing import TypeVarTuple

from sqlalchemy import Row, Select
from sqlalchemy.orm import InstrumentedAttribute, Session

from core.errors import Conflict

MIN_PREFIX_LENGTH = 6
"""Minimum length of a prefix."""

Ts = TypeVarTuple("Ts")


def find_by_id(session: Session, query: Select[*Ts], column: InstrumentedAttribute[str], id: str) -> Row[*Ts] | None:
    """The row whose id equals `id` or starts with it, or None. Raises Conflict if several ids start with it."""
    if not id.isprintable():
        return None
    row = session.execute(query.where(column == id)).first()
    if row is not None or len(id) < MIN_PREFIX_LENGTH:
        return row
    starts = column.startswith(id.lower(), autoescape=True)  # ids are lower-case; SQLite's LIKE ignores case anyway
    rows = session.execute(query.where(starts).limit(2)).all()
    if len(rows) > 1:
        raise Conflict("id_ambiguous", f"Several ids start with {id}. Use a longer prefix.")
    return rows[0] if rows else None
