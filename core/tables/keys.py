"""The tables of API keys, and of browsers that are signed in with them."""

from __future__ import annotations

from datetime import datetime
from enum import StrEnum

from sqlalchemy import ForeignKey, LargeBinary, String
from sqlalchemy.orm import Mapped, mapped_column

from core.database import Base, now


class Scope(StrEnum):
    """What a key may do."""

    READ = "read"
    """See models, examples, jobs and versions, but not their weights; ask for predictions."""
    INGEST = "ingest"
    """Add and remove examples."""
    ERASE = "erase"
    """Remove examples; handle erasure requests."""
    WEIGHTS = "weights"
    """Download the weights of versions."""
    ADMIN = "admin"
    """Everything."""


class Key(Base):
    """A key, known by the hash of its secret. A revoked key stays in the table for the record."""

    __tablename__ = "keys"

    id: Mapped[str] = mapped_column(String(20), primary_key=True)
    name: Mapped[str] = mapped_column(String(200))
    digest: Mapped[bytes] = mapped_column(LargeBinary)
    scopes: Mapped[list[str]]
    models: Mapped[list[str] | None]
    """The only models it can see; None: all."""
    created_at: Mapped[datetime] = mapped_column(default=now)
    last_used_at: Mapped[datetime | None]
    expires_at: Mapped[datetime | None]
    """From when on it is refused; None: never."""
    revoked_at: Mapped[datetime | None]


class SignIn(Base):
    """A browser that somebody signed in to the pages with a key, known by the hash of its cookie."""

    __tablename__ = "sign_ins"

    digest: Mapped[bytes] = mapped_column(LargeBinary, primary_key=True)
    key_id: Mapped[str] = mapped_column(ForeignKey(Key.id, ondelete="CASCADE"), index=True)
    until: Mapped[datetime] = mapped_column(index=True)
