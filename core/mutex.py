"""Named mutexes in the database, for work that only one process at a time should do. They expire."""

from datetime import timedelta

from sqlalchemy.exc import IntegrityError

from core.clock import now
from core.database import Database
from core.tables.bookkeeping import Mutex


def acquire(database: Database, name: str, owner: str, seconds: float) -> bool:
    """Acquire or extend a mutex; returns False if another owner holds it."""
    expires_at = now() + timedelta(seconds=seconds)
    try:
        with database.write() as session:
            mutex = session.get(Mutex, name, with_for_update=True)
            if mutex is None:
                session.add(Mutex(name=name, owner=owner, expires_at=expires_at))
            elif mutex.owner != owner and mutex.expires_at > now():
                return False
            else:
                mutex.owner, mutex.expires_at = owner, expires_at
    except IntegrityError:  # another owner has just created it
        return False
    return True


def is_held(database: Database, name: str) -> bool:
    """Whether anybody holds a mutex."""
    with database.read() as session:
        mutex = session.get(Mutex, name)
        return mutex is not None and mutex.expires_at > now()


def release(database: Database, name: str, owner: str) -> None:
    """Release a mutex before it expires, if it is still the owner's."""
    with database.write() as session:
        mutex = session.get(Mutex, name, with_for_update=True)
        if mutex is not None and mutex.owner == owner:
            session.delete(mutex)
