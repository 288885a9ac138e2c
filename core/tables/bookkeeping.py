"""The tables that no noun of ours owns: facts about the database, mutexes, kept answers, files to be deleted."""

from __future__ import annotations

from datetime import datetime

from sqlalchemy import LargeBinary, String
from sqlalchemy.orm import Mapped, mapped_column

from core.database import Base, now


class Metadata(Base):
    """A fact about the database, by its name."""

    __tablename__ = "marks"

    name: Mapped[str] = mapped_column(String(50), primary_key=True)
    value: Mapped[bytes] = mapped_column(LargeBinary)


class Mutex(Base):
    """Who does something, and until when nobody else should."""

    __tablename__ = "leases"

    name: Mapped[str] = mapped_column(String(50), primary_key=True)
    owner: Mapped[str] = mapped_column(String(200))
    until: Mapped[datetime]


class Answer(Base):
    """The first answer to a request that carried an Idempotency-Key."""

    __tablename__ = "answers"

    digest: Mapped[bytes] = mapped_column(LargeBinary, primary_key=True)
    """Of the API key and the Idempotency-Key."""
    request: Mapped[bytes] = mapped_column(LargeBinary)
    """Keyed hash of method, path and body: the same key with another request is a mistake."""
    status: Mapped[int]
    body: Mapped[bytes] = mapped_column(LargeBinary)
    created_at: Mapped[datetime] = mapped_column(default=now, index=True)


class OrphanFile(Base):
    """A file or folder of the store that nothing refers to: of a deleted model, or of a version not recorded yet.

    The row goes when the files are gone or belong to something, whatever happens between.
    """

    __tablename__ = "litter"

    path: Mapped[str] = mapped_column(String(500), primary_key=True)
    owner: Mapped[str | None] = mapped_column(String(200))
    """Whose lease of a job must end before it may be swept away."""
    created_at: Mapped[datetime] = mapped_column(default=now)
