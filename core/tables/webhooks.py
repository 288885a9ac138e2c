"""The tables of webhooks and of what they are told."""

from __future__ import annotations

from datetime import datetime
from enum import StrEnum

from sqlalchemy import Index, LargeBinary, String, Text
from sqlalchemy.orm import Mapped, mapped_column

from core.database import Base, BigInteger, enum_column, now


class WebhookEvent(StrEnum):
    """What webhooks can be told of."""

    VERSION_PROMOTED = "version.promoted"
    MODEL_WITHDRAWN = "model.withdrawn"
    """Nothing is left that it could stand for: nobody answers predictions."""
    JOB_FAILED = "job.failed"
    TOLERANCE_MISSED = "tolerance.missed"
    """A retrain showed that the adapted version was further off than the policy tolerates."""
    ERASURE_COMPLETED = "erasure.completed"
    ERASURE_DUE_SOON = "erasure.due_soon"


PING = "ping"
"""The type of what is sent to try a webhook out."""


class DeliveryState(StrEnum):
    """Where a delivery stands."""

    PENDING = "pending"
    DELIVERED = "delivered"
    GIVEN_UP = "given_up"


class Webhook(Base):
    """An address that is told of events."""

    __tablename__ = "webhooks"

    id: Mapped[str] = mapped_column(String(36), primary_key=True)
    url: Mapped[str] = mapped_column(String(2000))
    events: Mapped[list[str] | None]
    """The only ones that it is told of; None: all."""
    secret: Mapped[bytes] = mapped_column(LargeBinary)
    """What deliveries are signed with, encrypted."""
    failing_since: Mapped[datetime | None]
    """When the first delivery failed since the last that did not."""
    disabled_at: Mapped[datetime | None]
    disabled_why: Mapped[str | None] = mapped_column(String(200))
    created_at: Mapped[datetime] = mapped_column(default=now)


class Delivery(Base):
    """One event for one webhook: written with what happened, sent afterwards, kept for a while to be looked at."""

    __tablename__ = "deliveries"
    __table_args__ = (
        Index("ix_deliveries_due", "state", "next_at"),
        Index("ix_deliveries_listed", "webhook_id", "id"),
        {"sqlite_autoincrement": True},
    )

    id: Mapped[int] = mapped_column(BigInteger, primary_key=True)
    # no foreign key: what happens must not fail because a webhook is deleted at the same moment
    webhook_id: Mapped[str] = mapped_column(String(36))
    message_id: Mapped[str] = mapped_column(String(40))
    """The same at every attempt: by it a receiver knows what it has seen before."""
    type: Mapped[str] = mapped_column(String(30))
    body: Mapped[str] = mapped_column(Text)
    state: Mapped[DeliveryState] = mapped_column(enum_column(DeliveryState), default=DeliveryState.PENDING)
    attempts: Mapped[int] = mapped_column(default=0)
    next_at: Mapped[datetime] = mapped_column(default=now)
    """When it is sent next, or, while somebody sends it, when somebody else would."""
    status: Mapped[int | None]
    """Of the last answer."""
    error: Mapped[str | None] = mapped_column(String(200))
    """Why there was no answer, or not a good one."""
    delivered_at: Mapped[datetime | None]
    created_at: Mapped[datetime] = mapped_column(default=now, index=True)
