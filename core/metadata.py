"""What a database must remember about itself: the secret its hashes were made with, and files still to be deleted."""

from __future__ import annotations

import hmac
from datetime import datetime

from sqlalchemy import LargeBinary, String, text
from sqlalchemy.orm import Mapped, Session, mapped_column

from core.database import Base, now


class Metadata(Base):
    """A fact about the database, by its name."""

    __tablename__ = "marks"

    name: Mapped[str] = mapped_column(String(50), primary_key=True)
    value: Mapped[bytes] = mapped_column(LargeBinary)


class OrphanFile(Base):
    """A file or folder of the store that nothing refers to: of a deleted model, or of a version not recorded yet.

    The row goes when the files are gone or belong to something, whatever happens between.
    """

    __tablename__ = "litter"

    path: Mapped[str] = mapped_column(String(500), primary_key=True)
    owner: Mapped[str | None] = mapped_column(String(200))
    """Whose lease of a job must end before it may be swept away."""
    created_at: Mapped[datetime] = mapped_column(default=now)


def subjects_match(session: Session, caseless: bool) -> bool:
    """Whether the database's subjects were compared like this from the first one on.

    Only hashes of them are stored, which cannot be made anew: with the other way some people would not be found.
    """
    wanted, mark = b"caseless" if caseless else b"exact", session.get(Metadata, "subjects")
    if mark is not None and mark.value == wanted:
        return True
    if session.scalar(text("SELECT 1 FROM examples WHERE subject IS NOT NULL LIMIT 1")) is not None:
        return mark is None and not caseless
    session.merge(Metadata(name="subjects", value=wanted))
    return True


def secret_matches(session: Session, secret: bytes) -> bool:
    """Whether the database's hashes were made with this secret; the first one asked about is remembered.

    With another secret every subject would be unknown, and removals would silently remove nothing.
    """
    expected = hmac.digest(secret, b"mark of the secret", "sha256")
    mark = session.get(Metadata, "secret")
    if mark is None:
        session.add(Metadata(name="secret", value=expected))
        return True
    return hmac.compare_digest(mark.value, expected)
