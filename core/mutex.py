"""Named mutexes in the database, for work that only one process at a time should do. They expire."""

from datetime import timedelta

from sqlalchemy import delete, or_
from sqlalchemy.orm import Session

from core.clock import now
from core.database import Database, dialect_insert
from core.tables.bookkeeping import Mutex


def acquire(database: Database, name: str, owner: str, seconds: float) -> bool:
    """Acquire or extend a mutex; returns False if another owner holds it."""
    values = {"owner": owner, "expires_at": now() + timedelta(seconds=seconds)}
    free = or_(Mutex.owner == owner, Mutex.expires_at <= now())
    with database.write() as session:
        claim = dialect_insert(session, Mutex).values(name=name, **values)
        claim = claim.on_conflict_do_update(index_elements=[Mutex.name], set_=values, where=free)
        return session.execute(claim.returning(Mutex.name)).first() is not None


def is_taken(session: Session, name: str) -> bool:
    """Whether anybody holds a mutex."""
    mutex = session.get(Mutex, name)
    return mutex is not None and mutex.expires_at > now()


def release(database: Database, name: str, owner: str) -> None:
    """Release a mutex before it expires, if it is still the owner's."""
    with database.write() as session:
        session.execute(delete(Mutex).where(Mutex.name == name, Mutex.owner == owner))
