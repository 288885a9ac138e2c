"""The tables of erasure requests, of their parts (one per model), of their events, and of receipts."""

from datetime import datetime
from enum import StrEnum
from typing import Any

from sqlalchemy import JSON, ColumnElement, ForeignKey, Index, LargeBinary, String, text
from sqlalchemy.ext.hybrid import hybrid_method
from sqlalchemy.orm import Mapped, mapped_column

from core.clock import now
from core.database import Base, BigInteger, Json, enum_column
from core.tables.documents import JobError


class ErasureState(StrEnum):
    """The state of an erasure, as a whole and in each model."""

    HELD = "held"
    """The person's examples are removed; nothing else happens until somebody approves or refuses the request."""
    RECEIVED = "received"
    ADAPTING = "adapting"
    """The model is adapted or retrained without the person's examples."""
    VERIFYING = "verifying"
    """The certificate is compared with the tolerance."""
    PURGING = "purging"
    """The person's data is deleted, and the store is searched for remains."""
    COMPLETED = "completed"
    FAILED = "failed"
    REFUSED = "refused"


OPEN = (ErasureState.RECEIVED, ErasureState.ADAPTING, ErasureState.VERIFYING, ErasureState.PURGING, ErasureState.FAILED)
"""In progress or failed."""
PENDING = (ErasureState.HELD, *OPEN)
"""Neither completed nor refused."""
OPEN_STATES = "state NOT IN ('completed', 'refused')"


class Erasure(Base):
    """An erasure request."""

    __tablename__ = "erasures"
    __table_args__ = (
        # a second request for the same person is merged into the first
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
    """Keyed hash of the subject; deleted once the erasure is completed or refused."""
    token: Mapped[str] = mapped_column(String(64))
    """Another keyed hash, which is on receipts. Only holders of the secret can match it with a subject."""
    reason: Mapped[str | None] = mapped_column(String(500))
    """The reason given with the request; deleted with the subject."""
    requested_by: Mapped[str] = mapped_column(String(20))
    """Id of the key that filed the request."""
    request_id: Mapped[str | None] = mapped_column(String(64))
    state: Mapped[ErasureState] = mapped_column(enum_column(ErasureState), default=ErasureState.RECEIVED)
    received_at: Mapped[datetime]
    due_at: Mapped[datetime]
    warned_at: Mapped[datetime | None]
    """When the event `erasure.due_soon` was sent."""
    extension: Mapped[str | None] = mapped_column(String(500))
    """Reason for extending the due date."""
    refusal: Mapped[str | None] = mapped_column(String(500))
    """Reason for the refusal."""
    completed_at: Mapped[datetime | None]
    receipt: Mapped[int | None] = mapped_column(BigInteger)
    """Number of the receipt."""
    created_at: Mapped[datetime] = mapped_column(default=now)

    @property
    def late(self) -> bool:
        """Whether the erasure ended after its due date."""
        return self.completed_at is not None and self.completed_at > self.due_at

    @hybrid_method
    def is_overdue(self, moment: datetime) -> bool:
        return self.state in PENDING and self.due_at < moment

    @is_overdue.expression
    @classmethod
    def _is_overdue(cls, moment: datetime) -> ColumnElement[bool]:
        return cls.state.in_(PENDING) & (cls.due_at < moment)


class EventKind(StrEnum):
    """Actions on an erasure."""

    FILED = "filed"
    HELD = "held"
    APPROVED = "approved"
    REFUSED = "refused"
    EXTENDED = "extended"
    RETRIED = "retried"


class Event(Base):
    """An action on an erasure, and who performed it. Rows are never changed."""

    __tablename__ = "erasure_events"

    id: Mapped[int] = mapped_column(BigInteger, primary_key=True)
    # no foreign key: its check would lock the erasure before its models; jobs lock them in the opposite order
    erasure_id: Mapped[str] = mapped_column(String(36), index=True)
    kind: Mapped[EventKind] = mapped_column(enum_column(EventKind))
    by: Mapped[str] = mapped_column(String(20))
    """Id of the key."""
    at: Mapped[datetime] = mapped_column(default=now)


class Part(Base):
    """The part of an erasure that concerns one model."""

    __tablename__ = "erasure_parts"
    __table_args__ = (Index("ix_erasure_parts_model_id", "model_id"),)

    erasure_id: Mapped[str] = mapped_column(ForeignKey(Erasure.id, ondelete="CASCADE"), primary_key=True)
    # no foreign key: the model may be deleted in the meantime, which erases the person, too
    model_id: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    model: Mapped[str] = mapped_column(String(63))
    positions: Mapped[list[int]] = mapped_column(Json)
    """Positions of the person's examples when the request was received."""
    restricted: Mapped[list[int]] = mapped_column(Json, default=list)
    """The positions that the request removed; a refusal restores these examples."""
    examples: Mapped[int]
    first_position: Mapped[int] = mapped_column(BigInteger)
    """Position of the first of these examples. Versions at earlier positions were not trained on them."""
    removal_position: Mapped[int] = mapped_column(BigInteger)
    """Position at which the last of them was removed. Versions at or after it are trained without them."""
    newest_version: Mapped[int] = mapped_column(default=0)
    """Number of the model's newest version at the time of the request. Only later versions are verified."""
    state: Mapped[ErasureState] = mapped_column(enum_column(ErasureState), default=ErasureState.RECEIVED)
    error: Mapped[JobError | None] = mapped_column(Json)
    version: Mapped[int | None]
    """Number of the first version without the person's examples that was promoted."""
    report: Mapped[dict[str, Any] | None]
    """Method, certificate, audit, and what was deleted (`core/erasure/report.py`)."""


class Receipt(Base):
    """A receipt, which contains the hash of the previous one."""

    __tablename__ = "receipts"

    number: Mapped[int] = mapped_column(BigInteger, primary_key=True, autoincrement=False)
    erasure_id: Mapped[str] = mapped_column(String(36), index=True)
    # not JSONB, which reformats numbers: the hash is of the text
    body: Mapped[dict[str, Any]] = mapped_column(JSON)
    sha256: Mapped[str] = mapped_column(String(64))
    created_at: Mapped[datetime] = mapped_column(default=now)
