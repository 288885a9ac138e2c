"""Deletion of records after AMEND_REGISTER_RETENTION. Commitments stay, so proofs still verify."""

from datetime import datetime

from sqlalchemy import select, update
from sqlalchemy.orm import Session

from core.clock import now
from core.database import Database
from core.settings import Settings
from core.tables.erasures import UNENDED, Erasure
from core.tables.register import Leaf, RecordKind

BATCH = 1000
"""Records that one transaction deletes."""
ROTATION = f'%"kind":"{RecordKind.KEY_ROTATED}"%'
"""Rotations name nobody, and are needed to follow the keys."""


def cutoff(settings: Settings) -> datetime | None:
    """The time before which records have expired; None if they are kept for ever."""
    lifetime = settings.record_lifetime
    return None if lifetime is None else now() - lifetime


def expire_records(database: Database, settings: Settings) -> int:
    """Delete expired records and their salts, except those of open requests; returns how many."""
    moment = cutoff(settings)
    if moment is None:
        return 0
    with database.read() as session:
        if not find_expired(session, moment):
            return 0
    with database.write() as session:
        found = find_expired(session, moment)
        # their files are written anew, without the record
        session.execute(update(Leaf).where(Leaf.index.in_(found)).values(record=None, salt=None, filed=False))
    return len(found)


def find_expired(session: Session, moment: datetime) -> list[int]:
    """Indices of the leaves whose records have expired."""
    open_requests = select(Erasure.id).where(Erasure.state.in_(UNENDED))
    old = select(Leaf.index).where(Leaf.record.is_not(None), Leaf.created_at < moment, Leaf.record.not_like(ROTATION))
    free = Leaf.erasure_id.is_(None) | Leaf.erasure_id.not_in(open_requests)
    return list(session.scalars(old.where(free).order_by(Leaf.created_at).limit(BATCH)))
