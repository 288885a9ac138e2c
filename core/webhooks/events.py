"""Noting what webhooks shall be told, in the transaction in which it happens: whatever dies afterwards, it is sent.

Payloads are thin: ids and numbers by which a receiver can ask for the rest. Nothing in them is about a person.
"""

from __future__ import annotations

import json
import uuid
from typing import TypedDict

from sqlalchemy import select
from sqlalchemy.orm import Session

from core.database import now, utc_text
from core.tables.webhooks import Delivery, Webhook, WebhookEvent

Value = str | int | bool | None
"""Of an event: a name, an id or a number."""


class Payload(TypedDict):
    """What is sent."""

    type: str
    timestamp: str
    data: dict[str, Value]


def emit(session: Session, event: WebhookEvent, **data: Value) -> None:
    """Enqueue an event for every webhook that wants to be told of it."""
    for webhook in session.scalars(select(Webhook).where(Webhook.disabled_at.is_(None))):
        if webhook.events is None or event in webhook.events:
            enqueue(session, webhook, event, data)


def enqueue(session: Session, webhook: Webhook, type: str, data: dict[str, Value]) -> Delivery:
    payload: Payload = {"type": type, "timestamp": utc_text(now()), "data": data}
    message_id = f"msg_{uuid.uuid4().hex}"
    delivery = Delivery(webhook_id=webhook.id, message_id=message_id, type=type, body=json.dumps(payload))
    session.add(delivery)
    return delivery
