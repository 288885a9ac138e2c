"""Named mutexes in the database, for work that only one process at a time should do. They expire by themselves."""

from __future__ import annotations

from datetime import timedelta

from sqlalchemy.exc import IntegrityError

from core.database import Database, now
from core.tables.bookkeeping import Mutex


def acquire(database: Database, name: str, owner: str, seconds: float) -> bool:
    """Acquire or extend a mutex; returns False while another owner has it."""
    until = now() + timedelta(seconds=seconds)
    try:
        with database.write() as session:
            mutex = session.get(Mutex, name, with_for_update=True)
            if mutex is None:
                session.add(Mutex(name=name, owner=owner, until=until))
            elif mutex.owner != owner and mutex.until > now():
                return False
            else:
                mutex.owner, mutex.until = owner, until
    except IntegrityError:  # somebody else was the first ever
        return False
    return True


def release(database: Database, name: str, owner: str) -> None:
    """Release a mutex before it expires, if it is still the owner's."""
    with database.write() as session:
        mutex = session.get(Mutex, name, with_for_update=True)
        if mutex is not None and mutex.owner == owner:
            session.delete(mutex)
