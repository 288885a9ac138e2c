"""The tables of the journal: what a restore of an older backup must not undo (`core/ledger/journal.py`)."""

from datetime import datetime
from enum import StrEnum
from typing import Any

from sqlalchemy import Index, String, text
from sqlalchemy.orm import Mapped, mapped_column

from core.clock import now
from core.database import Base, BigInteger, Json, enum_column


class JournalKind(StrEnum):
    """What an entry of the journal is about."""

    REMOVED = "removed"
    CORRECTED = "corrected"
    REQUESTED = "requested"
    """An erasure was requested; the register has everything about it except what is deleted when it ends."""
    MODEL_DELETED = "model_deleted"


UNWRITTEN = text("NOT written")


class JournalEntry(Base):
    """A change that is repeated after a restore of an older backup."""

    __tablename__ = "journal_entries"
    __table_args__ = (
        Index("ix_journal_entries_last", "model_id", "last"),
        Index("ix_journal_entries_file", "file"),
        Index("ix_journal_entries_erasure_id", "erasure_id"),
        Index("ix_journal_entries_unwritten", "file", sqlite_where=UNWRITTEN, postgresql_where=UNWRITTEN),
    )

    id: Mapped[str] = mapped_column(String(36), primary_key=True)
    kind: Mapped[JournalKind] = mapped_column(enum_column(JournalKind))
    # no foreign keys: an entry outlives its model, and its request may be lost by a restore
    model_id: Mapped[int | None]
    erasure_id: Mapped[str | None] = mapped_column(String(36))
    content: Mapped[dict[str, Any]] = mapped_column(Json)
    """Keyed hashes of the ids, subjects or source, or positions."""
    positions: Mapped[list[int | None] | None] = mapped_column(Json)
    """Of a correction: the position of each new example; null for those that a replay could not correct again."""
    first: Mapped[int | None] = mapped_column(BigInteger)
    """The first of these positions."""
    last: Mapped[int | None] = mapped_column(BigInteger)
    size: Mapped[int]
    """Number of hashes."""
    file: Mapped[str] = mapped_column(String(64))
    """Name of the file in the store."""
    written: Mapped[bool] = mapped_column(default=False)
    """Whether the file has the entry as it is now."""
    at: Mapped[datetime] = mapped_column(default=now)


class JournalFile(Base):
    """A file of the journal in the store."""

    __tablename__ = "journal_files"

    name: Mapped[str] = mapped_column(String(64), primary_key=True)
    created_at: Mapped[datetime] = mapped_column(default=now)
