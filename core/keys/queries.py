"""Queries about keys."""

from collections.abc import Collection, Sequence

from sqlalchemy import or_, select
from sqlalchemy.orm import Session

from core.clock import now
from core.paging import invalid_cursor
from core.tables.keys import Key, Scope

ACTIVE = Key.revoked_at.is_(None)


def page_keys(session: Session, after: str, limit: int) -> Sequence[Key]:
    """A page of the keys and people that are not revoked, ordered by id."""
    if not (after.isascii() and after.isprintable()):
        raise invalid_cursor()
    return session.scalars(select(Key).where(ACTIVE, Key.id > after).order_by(Key.id).limit(limit)).all()


def names_of(session: Session, ids: Collection[str]) -> dict[str, str]:
    """Names of keys by their ids, including revoked keys."""
    keys = session.scalars(select(Key).where(Key.id.in_(ids)))
    return {key.id: key.name for key in keys}


def has_admin(session: Session) -> bool:
    """Whether a valid key with the scope `admin` exists that is not limited to models."""
    valid = select(Key).where(ACTIVE, or_(Key.expires_at.is_(None), Key.expires_at > now()))
    return any(Scope.ADMIN in key.scopes and key.models is None for key in session.scalars(valid))
