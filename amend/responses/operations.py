"""Keys of the service, and whether it is ready."""

from __future__ import annotations

from datetime import datetime

from amend.responses.base import Answer


class Key(Answer, frozen=True):
    """A key of the service."""

    id: str
    name: str
    scopes: list[str]
    models: list[str] | None
    created_at: datetime
    last_used_at: datetime | None
    expires_at: datetime | None


class IssuedKey(Key, frozen=True):
    """A new key, with the text to send. It is shown this once."""

    key: str


class Health(Answer, frozen=True):
    """Of one part that the service leans on."""

    ok: bool
    detail: str


class Readiness(Answer, frozen=True):
    """``ready``; ``degraded`` if only the dashboards stand still; ``down`` if work cannot be done."""

    status: str
    database: Health
    broker: Health
    worker: Health
    mlflow: Health
    store: Health | None = None
