"""Leases by name, for work that one process at a time should do, whichever it is."""

from __future__ import annotations

from datetime import datetime, timedelta

from sqlalchemy import String
from sqlalchemy.exc import IntegrityError
from sqlalchemy.orm import Mapped, mapped_column

from core.database import Base, Database, now


class Mutex(Base):
    """Who does something, and until when nobody else should."""

    __tablename__ = "leases"

    name: Mapped[str] = mapped_column(String(50), primary_key=True)
    owner: Mapped[str] = mapped_column(String(200))
    until: Mapped[datetime]


def take(database: Database, name: str, owner: str, seconds: float) -> bool:
    """Get or extend a lease; False while another owner has it."""
    until = now() + timedelta(seconds=seconds)
    try:
        with database.write() as session:
            lease = session.get(Mutex, name, with_for_update=True)
            if lease is None:
                session.add(Mutex(name=name, owner=owner, until=until))
            elif lease.owner != owner and lease.until > now():
                return False
            else:
                lease.owner, lease.until = owner, until
    except IntegrityError:  # somebody else was the first ever
        return False
    return True


def give_back(database: Database, name: str, owner: str) -> None:
    """End a lease before its time, if it is still the owner's."""
    with database.write() as session:
        lease = session.get(Mutex, name, with_for_update=True)
        if lease is not None and lease.owner == owner:
            session.delete(lease)
