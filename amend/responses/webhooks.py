"""Webhooks, and what they were told."""

from __future__ import annotations

from datetime import datetime

from amend.responses.base import Answer


class Webhook(Answer, frozen=True):
    """An address that is told of events; ``events`` None: of all."""

    id: str
    url: str
    events: list[str] | None
    failing_since: datetime | None
    disabled_at: datetime | None
    disabled_why: str | None
    created_at: datetime


class CreatedWebhook(Webhook, frozen=True):
    """A new webhook, with the secret that its deliveries are signed with. It is shown this once."""

    secret: str


class Delivery(Answer, frozen=True):
    """One event for one webhook: ``pending``, ``delivered`` or ``given_up``."""

    id: str
    type: str
    state: str
    attempts: int
    status: int | None
    error: str | None
    next_at: datetime | None
    delivered_at: datetime | None
    created_at: datetime
