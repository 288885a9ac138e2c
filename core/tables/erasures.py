"""The tables of erasures, of what each of them means for each model, and of the receipts."""

from __future__ import annotations

from datetime import datetime
from enum import StrEnum
from typing import Any

from sqlalchemy import JSON, ColumnElement, ForeignKey, Index, LargeBinary, String, text
from sqlalchemy.ext.hybrid import hybrid_method
from sqlalchemy.orm import Mapped, mapped_column

from core.database import Base, BigInteger, Json, enum_column, now
from core.tables.figures import JobError


class ErasureState(StrEnum):
    """Where an erasure stands, as a whole and in each model."""

    HELD = "held"
    """The person's examples are out of force; nothing else happens until somebody approves or refuses the request."""
    RECEIVED = "received"
    ADAPTING = "adapting"
    """The model is moved to where it would be without the person."""
    VERIFYING = "verifying"
    """Its certificate is held against the tolerance."""
    PURGING = "purging"
    """What was kept of the person is deleted, and looked for."""
    COMPLETED = "completed"
    FAILED = "failed"
    REFUSED = "refused"


OPEN = (ErasureState.RECEIVED, ErasureState.ADAPTING, ErasureState.VERIFYING, ErasureState.PURGING, ErasureState.FAILED)
"""Being carried out, or failed."""
PENDING = (ErasureState.HELD, *OPEN)
"""Not yet as asked, and not refused."""
OPEN_STATES = "state NOT IN ('completed', 'refused')"


class Erasure(Base):
    """One request."""

    __tablename__ = "erasures"
    __table_args__ = (
        # a second request for the same person joins the first
        Index(
            "uq_erasures_open",
            "subject",
            unique=True,
            sqlite_where=text(OPEN_STATES),
            postgresql_where=text(OPEN_STATES),
        ),
        Index("ix_erasures_listed", "created_at", "id"),
    )

    id: Mapped[str] = mapped_column(String(36), primary_key=True)
    subject: Mapped[bytes | None] = mapped_column(LargeBinary)
    """Keyed hash of the person; deleted once the erasure is completed or refused."""
    token: Mapped[str] = mapped_column(String(64))
    """Another keyed hash, which receipts carry: it tells the person again only to who has the secret."""
    reason: Mapped[str | None] = mapped_column(String(500))
    """As given with the request; deleted with the subject."""
    asked_by: Mapped[str] = mapped_column(String(20))
    """The id of the key."""
    request_id: Mapped[str | None] = mapped_column(String(64))
    state: Mapped[ErasureState] = mapped_column(enum_column(ErasureState), default=ErasureState.RECEIVED)
    received_at: Mapped[datetime]
    due_at: Mapped[datetime]
    warned_at: Mapped[datetime | None]
    """When webhooks were told that it is due soon."""
    extension: Mapped[str | None] = mapped_column(String(500))
    """Why the due date was moved."""
    refusal: Mapped[str | None] = mapped_column(String(500))
    """Why it was refused."""
    completed_at: Mapped[datetime | None]
    receipt: Mapped[int | None] = mapped_column(BigInteger)
    """The number of its receipt."""
    created_at: Mapped[datetime] = mapped_column(default=now)

    @property
    def late(self) -> bool:
        """Whether it ended after it was due."""
        return self.completed_at is not None and self.completed_at > self.due_at

    @hybrid_method
    def is_overdue(self, moment: datetime) -> bool:
        return self.state in PENDING and self.due_at < moment

    @is_overdue.expression
    @classmethod
    def _is_overdue(cls, moment: datetime) -> ColumnElement[bool]:
        return cls.state.in_(PENDING) & (cls.due_at < moment)


class EventKind(StrEnum):
    """What somebody can do about an erasure."""

    FILED = "filed"
    HELD = "held"
    APPROVED = "approved"
    REFUSED = "refused"
    EXTENDED = "extended"
    RETRIED = "retried"


class Event(Base):
    """Who did what about an erasure, and when. Rows are only ever added."""

    __tablename__ = "erasure_events"

    id: Mapped[int] = mapped_column(BigInteger, primary_key=True)
    # no foreign key: its check would hold the erasure before its models are held, which jobs do the other way round
    erasure_id: Mapped[str] = mapped_column(String(36), index=True)
    kind: Mapped[EventKind] = mapped_column(enum_column(EventKind))
    by: Mapped[str] = mapped_column(String(20))
    """The id of the key."""
    at: Mapped[datetime] = mapped_column(default=now)


class Part(Base):
    """What an erasure means for one model."""

    __tablename__ = "erasure_parts"
    __table_args__ = (Index("ix_erasure_parts_model_id", "model_id"),)

    erasure_id: Mapped[str] = mapped_column(ForeignKey(Erasure.id, ondelete="CASCADE"), primary_key=True)
    # no foreign key: a model that is deleted meanwhile has forgotten the person, too
    model_id: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    model: Mapped[str] = mapped_column(String(63))
    positions: Mapped[list[int]] = mapped_column(Json)
    """Of the person's examples: the snapshot of what was found."""
    restricted: Mapped[list[int]] = mapped_column(Json, default=list)
    """Those among them that the request took out of force: a refusal puts them back."""
    examples: Mapped[int]
    first: Mapped[int] = mapped_column(BigInteger)
    """The position of the earliest of them: versions before it never knew the person."""
    removed: Mapped[int] = mapped_column(BigInteger)
    """The position by which all of them are removed: versions from there on do not know the person."""
    newest: Mapped[int] = mapped_column(default=0)
    """The number of the model's newest version when the work was asked for: only later ones were made to forget."""
    state: Mapped[ErasureState] = mapped_column(enum_column(ErasureState), default=ErasureState.RECEIVED)
    error: Mapped[JobError | None] = mapped_column(Json)
    version: Mapped[int | None]
    """The first version without the person that was promoted."""
    figures: Mapped[dict[str, Any] | None]
    """How it was done, the certificate, the audit, and what was deleted."""


class Receipt(Base):
    """A receipt, chained by its hash to the one before."""

    __tablename__ = "receipts"

    number: Mapped[int] = mapped_column(BigInteger, primary_key=True, autoincrement=False)
    erasure_id: Mapped[str] = mapped_column(String(36), index=True)
    # not the binary JSON: it spells numbers its own way, and the hash is of the text
    body: Mapped[dict[str, Any]] = mapped_column(JSON)
    sha256: Mapped[str] = mapped_column(String(64))
    created_at: Mapped[datetime] = mapped_column(default=now)
