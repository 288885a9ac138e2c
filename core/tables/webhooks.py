"""The tables of webhooks and of their deliveries."""

from datetime import datetime
from enum import StrEnum

from sqlalchemy import Index, LargeBinary, String, Text
from sqlalchemy.orm import Mapped, mapped_column

from core.clock import now
from core.database import Base, BigInteger, enum_column


class WebhookEvent(StrEnum):
    """Events that webhooks can subscribe to."""

    VERSION_PROMOTED = "version.promoted"
    MODEL_WITHDRAWN = "model.withdrawn"
    """The model has no training examples left and serves no predictions."""
    JOB_FAILED = "job.failed"
    TOLERANCE_MISSED = "tolerance.missed"
    """A retrain showed that the adapted version was outside the tolerance of the policy."""
    VERSION_REJECTED = "version.rejected"
    """A version failed the promotion gate."""
    BATCH_SUSPICIOUS = "batch.suspicious"
    """The champion's loss on a new batch was far above its usual loss."""
    DRIFT_DETECTED = "drift.detected"
    """The distribution of a column or of the predictions has changed since the last full training."""
    ERASURE_COMPLETED = "erasure.completed"
    ERASURE_DUE_SOON = "erasure.due_soon"
    SUBJECT_RETURNED = "subject.returned"
    """Examples arrived about a person whose data was erased."""


PING = "ping"
"""Type of test deliveries."""


class DeliveryState(StrEnum):
    """States of a delivery."""

    PENDING = "pending"
    DELIVERED = "delivered"
    GIVEN_UP = "given_up"


class Webhook(Base):
    """A URL that events are sent to."""

    __tablename__ = "webhooks"

    id: Mapped[str] = mapped_column(String(36), primary_key=True)
    url: Mapped[str] = mapped_column(String(2000))
    events: Mapped[list[str] | None]
    """Events that the webhook subscribes to; None: all."""
    secret: Mapped[bytes] = mapped_column(LargeBinary)
    """Secret that signs deliveries, encrypted."""
    failing_since: Mapped[datetime | None]
    """Time of the first failure since the last successful delivery."""
    disabled_at: Mapped[datetime | None]
    disabled_reason: Mapped[str | None] = mapped_column(String(200))
    created_at: Mapped[datetime] = mapped_column(default=now)


class Delivery(Base):
    """An event for one webhook: written in the transaction of the event, sent afterwards, and kept for a while."""

    __tablename__ = "deliveries"
    __table_args__ = (
        Index("ix_deliveries_due", "state", "next_attempt_at"),
        Index("ix_deliveries_listed", "webhook_id", "id"),
        {"sqlite_autoincrement": True},
    )

    id: Mapped[int] = mapped_column(BigInteger, primary_key=True)
    # no foreign key: the event must not fail because a webhook is deleted at the same time
    webhook_id: Mapped[str] = mapped_column(String(36))
    message_id: Mapped[str] = mapped_column(String(40))
    """The same for every attempt, so that receivers can detect repetitions."""
    type: Mapped[str] = mapped_column(String(30))
    body: Mapped[str] = mapped_column(Text)
    state: Mapped[DeliveryState] = mapped_column(enum_column(DeliveryState), default=DeliveryState.PENDING)
    attempts: Mapped[int] = mapped_column(default=0)
    next_attempt_at: Mapped[datetime] = mapped_column(default=now)
    """Time of the next attempt or, during an attempt, when another process would retry."""
    status: Mapped[int | None]
    """HTTP status of the last response."""
    error: Mapped[str | None] = mapped_column(String(200))
    """Why the last attempt failed."""
    delivered_at: Mapped[datetime | None]
    created_at: Mapped[datetime] = mapped_column(default=now, index=True)
