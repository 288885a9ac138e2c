"""Enqueueing events for webhooks, in the transaction in which they happen, so that a crash afterwards loses none.

Payloads are small: ids and numbers with which a receiver can request the rest. They contain no personal data.
"""

import json
import uuid
from typing import Any, TypedDict

from sqlalchemy import select
from sqlalchemy.orm import Session

from core.clock import now
from core.database import utc_text
from core.tables.webhooks import Delivery, Webhook, WebhookEvent

Value = str | int | bool | list[str] | dict[str, Any] | None
"""A name, an id, a number, several names or a signed head in an event."""


class Payload(TypedDict):
    """The JSON body of a delivery."""

    type: str
    timestamp: str
    data: dict[str, Value]


def emit(session: Session, event: WebhookEvent, **data: Value) -> None:
    """Enqueue an event for every webhook that subscribes to it."""
    for webhook in session.scalars(select(Webhook).where(Webhook.disabled_at.is_(None))):
        if webhook.events is None or event in webhook.events:
            enqueue(session, webhook, event, data)


def enqueue(session: Session, webhook: Webhook, type: str, data: dict[str, Value]) -> Delivery:
    payload: Payload = {"type": type, "timestamp": utc_text(now()), "data": data}
    message_id = f"msg_{uuid.uuid4().hex}"
    delivery = Delivery(webhook_id=webhook.id, message_id=message_id, type=type, body=json.dumps(payload))
    session.add(delivery)
    return delivery
