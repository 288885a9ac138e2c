"""The tables of erasure requests, of their parts (one per model), and of receipts."""

from datetime import datetime
from enum import StrEnum
from typing import Any

from sqlalchemy import JSON, Boolean, ColumnElement, ForeignKey, Index, LargeBinary, String, UniqueConstraint
from sqlalchemy.ext.hybrid import hybrid_method
from sqlalchemy.orm import Mapped, mapped_column

from core.clock import now
from core.database import Base, BigInteger, Json, enum_column
from core.tables.documents import JobError


class ErasureState(StrEnum):
    """The state of an erasure, as a whole and in each model."""

    UNMATCHED = "unmatched"
    """No example was found under the person's identifiers. Somebody has to approve or refuse the request."""
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
    WITHDRAWN = "withdrawn"
    """The person no longer wants the erasure."""
    RESTRICTED = "restricted"
    """Not an erasure, but a restriction of processing (GDPR Art. 18): the person's examples are removed until somebody
    lifts it."""
    LIFTED = "lifted"
    """A restriction that has ended."""


OPEN = (ErasureState.RECEIVED, ErasureState.ADAPTING, ErasureState.VERIFYING, ErasureState.PURGING, ErasureState.FAILED)
"""In progress or failed."""
PENDING = (ErasureState.UNMATCHED, ErasureState.HELD, *OPEN)
"""Neither completed, refused nor withdrawn."""
UNENDED = (*PENDING, ErasureState.RESTRICTED)
"""Open erasures, and restrictions that are in effect."""
RESTRICTIONS = (ErasureState.RESTRICTED, ErasureState.LIFTED)
"""The states of restrictions; all others are states of erasures."""
WAITING = (ErasureState.HELD, ErasureState.RESTRICTED)
"""The person's examples are removed, and may return."""
UNDONE = (ErasureState.REFUSED, ErasureState.WITHDRAWN, ErasureState.LIFTED)
"""Ended without an erasure: the person's examples are in force again."""


class Erasure(Base):
    """An erasure request, or a restriction of processing (`RESTRICTIONS`)."""

    __tablename__ = "erasures"
    __table_args__ = (
        Index("ix_erasures_listed", "created_at", "id"),
        Index("ix_erasures_received", "received_at", "id"),
    )

    id: Mapped[str] = mapped_column(String(36), primary_key=True)
    token: Mapped[str] = mapped_column(String(64))
    """Keyed hash of the first identifier, which is on receipts."""
    reason: Mapped[str | None] = mapped_column(String(500))
    """The reason given with the request; deleted once the erasure is completed or refused."""
    requested_by: Mapped[str] = mapped_column(String(20))
    """Id of the key that filed the request."""
    request_id: Mapped[str | None] = mapped_column(String(64))
    near_matches: Mapped[int] = mapped_column(default=0)
    """Number of similar spellings under which there were examples when the request was filed last."""
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
    repeats: Mapped[str | None] = mapped_column(String(36))
    """Id of the erasure that this one repeats, after a restore from a backup."""
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


class Identifier(Base):
    """An identifier of the person whose erasure or restriction is requested. A second open request of the same kind for
    it is merged into the first."""

    __tablename__ = "erasure_subjects"
    __table_args__ = (UniqueConstraint("subject", "restriction"),)

    erasure_id: Mapped[str] = mapped_column(ForeignKey(Erasure.id, ondelete="CASCADE"), primary_key=True)
    token: Mapped[str] = mapped_column(String(64), primary_key=True, index=True)
    """Keyed hash that is on receipts. Only holders of the secret can match it with an identifier."""
    subject: Mapped[bytes | None] = mapped_column(LargeBinary)
    """Keyed hash by which examples are found; deleted once the request has ended."""
    restriction: Mapped[bool] = mapped_column(Boolean(create_constraint=False), default=False)
    """Whether the request is a restriction of processing."""


class Part(Base):
    """The part of an erasure that concerns one model."""

    __tablename__ = "erasure_parts"
    __table_args__ = (Index("ix_erasure_parts_model_id", "model_id"),)

    erasure_id: Mapped[str] = mapped_column(ForeignKey(Erasure.id, ondelete="CASCADE"), primary_key=True)
    # no foreign key: the model may be deleted in the meantime, which erases the person as well
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
    """Method, certificate, audit, and what was deleted (`core/erasure/receipt_content.py`)."""


class Receipt(Base):
    """A receipt: a signed statement, with the leaf of the register that contains its hash."""

    __tablename__ = "receipts"

    number: Mapped[int] = mapped_column(BigInteger, primary_key=True, autoincrement=False)
    erasure_id: Mapped[str] = mapped_column(String(36), index=True)
    leaf: Mapped[int] = mapped_column(BigInteger)
    """Index of the leaf in the register."""
    payload: Mapped[bytes] = mapped_column(LargeBinary)
    """The in-toto statement, byte for byte as it was signed."""
    sha256: Mapped[str] = mapped_column(String(64))
    """Hash of the payload."""
    signature: Mapped[str] = mapped_column(String(100))
    key_id: Mapped[str] = mapped_column(String(16))
    head: Mapped[dict[str, Any]] = mapped_column(JSON)
    """Signed head of the register that includes the leaf."""
    created_at: Mapped[datetime] = mapped_column(default=now)
