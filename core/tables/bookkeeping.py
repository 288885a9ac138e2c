"""Tables that belong to no domain object: metadata, mutexes, idempotency records and orphan files."""

from datetime import datetime

from sqlalchemy import LargeBinary, String
from sqlalchemy.orm import Mapped, mapped_column

from core.clock import now
from core.database import Base


class Metadata(Base):
    """A property of the database as a whole."""

    __tablename__ = "metadata"

    name: Mapped[str] = mapped_column(String(50), primary_key=True)
    value: Mapped[bytes] = mapped_column(LargeBinary)


class Mutex(Base):
    """A named lock, and the owner that holds it until it expires."""

    __tablename__ = "mutexes"

    name: Mapped[str] = mapped_column(String(50), primary_key=True)
    owner: Mapped[str] = mapped_column(String(200))
    expires_at: Mapped[datetime]


class IdempotencyRecord(Base):
    """The first response to a request that carried an Idempotency-Key."""

    __tablename__ = "idempotency_records"

    key_digest: Mapped[bytes] = mapped_column(LargeBinary, primary_key=True)
    """Hash of the API key and the Idempotency-Key."""
    request_digest: Mapped[bytes] = mapped_column(LargeBinary)
    """Keyed hash of method, path and body, which detects the same key with a different request."""
    status: Mapped[int]
    body: Mapped[bytes] = mapped_column(LargeBinary)
    created_at: Mapped[datetime] = mapped_column(default=now, index=True)


class OrphanFile(Base):
    """A file or folder in the store that no row refers to: left by a deleted model or by a version not yet recorded.

    The row is deleted once the file has been deleted or a version refers to it, so a crash in between leaks no file.
    """

    __tablename__ = "orphan_files"

    path: Mapped[str] = mapped_column(String(500), primary_key=True)
    owner: Mapped[str | None] = mapped_column(String(200))
    """Lease owner of the job that wrote the file; it is not deleted while that lease is valid."""
    created_at: Mapped[datetime] = mapped_column(default=now)
