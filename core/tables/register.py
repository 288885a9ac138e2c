"""The tables of the register: leaves, hashes of complete subtrees, signing keys and time-stamped heads."""

from datetime import datetime
from enum import StrEnum
from typing import Any

from sqlalchemy import JSON, Index, LargeBinary, String, Text, text
from sqlalchemy.orm import Mapped, mapped_column

from core.clock import now
from core.database import Base, BigInteger


class RecordKind(StrEnum):
    """What a record of the register is about."""

    FILED = "filed"
    HELD = "held"
    APPROVED = "approved"
    REFUSED = "refused"
    WITHDRAWN = "withdrawn"
    RESTRICTED = "restricted"
    """The processing of a person's data was restricted (GDPR Art. 18)."""
    LIFTED = "lifted"
    """The restriction has ended."""
    CORRECTED = "corrected"
    """An example about the person was corrected (GDPR Art. 16)."""
    EXTENDED = "extended"
    RETRIED = "retried"
    COMPLETED = "completed"
    REPLAYED = "replayed"
    """The erasure was repeated after a restore from a backup."""
    PURGED = "purged"
    """A version that had been kept after the erasure was purged."""
    EXPORTED = "exported"
    """Data of the person, or a bundle of evidence, was exported."""
    KEY_ROTATED = "key_rotated"


UNFILED, UNEXPIRED = text("NOT filed"), text("record IS NOT NULL")


class Leaf(Base):
    """A leaf of the register. Record and salt are deleted after the retention period; the commitment stays."""

    __tablename__ = "register_leaves"
    __table_args__ = (
        Index("ix_register_leaves_unfiled", "index", sqlite_where=UNFILED, postgresql_where=UNFILED),
        Index("ix_register_leaves_created_at", "created_at", sqlite_where=UNEXPIRED, postgresql_where=UNEXPIRED),
    )

    index: Mapped[int] = mapped_column(BigInteger, primary_key=True, autoincrement=False)
    commitment: Mapped[bytes] = mapped_column(LargeBinary)
    salt: Mapped[bytes | None] = mapped_column(LargeBinary)
    # not JSON: the commitment is of these bytes
    record: Mapped[str | None] = mapped_column(Text)
    # no foreign key: its check would lock the erasure after the register
    erasure_id: Mapped[str | None] = mapped_column(String(36), index=True)
    filed: Mapped[bool] = mapped_column(default=False)
    """Whether the leaf's file in the store was written."""
    created_at: Mapped[datetime] = mapped_column(default=now)


class Node(Base):
    """The hash of a complete subtree: 2^level leaves, beginning with leaf index * 2^level."""

    __tablename__ = "register_nodes"

    level: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    index: Mapped[int] = mapped_column(BigInteger, primary_key=True, autoincrement=False)
    hash: Mapped[bytes] = mapped_column(LargeBinary)


class SigningKey(Base):
    """A key that signed heads of the register. Only the public part is stored."""

    __tablename__ = "register_keys"

    key_id: Mapped[str] = mapped_column(String(16), primary_key=True)
    public_key: Mapped[str] = mapped_column(String(500))
    """PEM (SubjectPublicKeyInfo)."""
    until: Mapped[int | None] = mapped_column(BigInteger)
    """Index of the leaf that replaced the key; null for the current key."""
    head: Mapped[dict[str, Any] | None] = mapped_column(JSON(none_as_null=True))
    """Head signed by this key that includes that leaf; null if the key was lost."""


class StampedHead(Base):
    """A signed head with the time stamp of an authority (RFC 3161)."""

    __tablename__ = "register_timestamps"

    size: Mapped[int] = mapped_column(BigInteger, primary_key=True, autoincrement=False)
    head: Mapped[dict[str, Any]] = mapped_column(JSON)
    response: Mapped[bytes] = mapped_column(LargeBinary)
    """DER-encoded TimeStampResp."""
    created_at: Mapped[datetime] = mapped_column(default=now)
