"""Issuing, checking and revoking keys. A key is `amend_<id>_<secret>`; the id identifies its row."""

import hashlib
import hmac
import re
import secrets
from collections.abc import Sequence
from datetime import datetime, timedelta

from sqlalchemy import update
from sqlalchemy.orm import Session

from core.clock import now
from core.database import utc_text
from core.errors import Invalid, NotFound, Unauthorized
from core.tables.keys import Key, Scope

PREFIX = "amend_"
KEY_PATTERN = re.compile(rf"{PREFIX}([a-z0-9]{{8,20}})_([A-Za-z0-9_-]{{20,100}})")
MAX_LIFETIME = timedelta(days=36525)
LAST_USED_PRECISION = timedelta(minutes=1)
"""`last_used_at` lags by at most this: a write for every request would cost more than the request."""


def issue(
    session: Session, name: str, scopes: Sequence[Scope], models: list[str] | None, expires_at: datetime | None = None
) -> tuple[Key, str]:
    """Issue a key; returns it with its text, which is shown only once."""
    if expires_at is not None and not timedelta() < expires_at - now() < MAX_LIFETIME:
        raise Invalid.at(("expires_at",), "key_invalid", "must be in the future and within a hundred years")
    text = f"amend_{secrets.token_hex(6)}_{secrets.token_urlsafe(32)}"
    key, _ = add(session, text, name, scopes, models)
    key.expires_at = expires_at
    return key, text


def add(session: Session, text: str, name: str, scopes: Sequence[Scope], models: list[str] | None) -> tuple[Key, str]:
    """Add a key with a given text, such as AMEND_ADMIN_KEY; returns it with its text."""
    match = KEY_PATTERN.fullmatch(text)
    if not match:
        raise Invalid("key_invalid", "A key has the form amend_<8-20 of a-z 0-9>_<20-100 of A-Z a-z 0-9 _ ->.")
    key = Key(id=match[1], name=name, digest=digest(match[2]), scopes=[s.value for s in scopes], models=models)
    session.add(key)
    session.flush()
    return key, text


def digest(secret: str) -> bytes:
    # secrets have 256 random bits and cannot be guessed, so a slow hash would add nothing
    return hashlib.sha256(secret.encode()).digest()


def check(session: Session, text: str) -> Key | None:
    """The key with this text; None if it is unknown, wrong or revoked. Raises Unauthorized if it has expired."""
    match = KEY_PATTERN.fullmatch(text)
    key = session.get(Key, match[1]) if match else None
    # an unknown id takes as long as a wrong secret
    matches = hmac.compare_digest(key.digest if key else bytes(32), digest(match[2] if match else ""))
    if key is None or not matches or key.revoked_at is not None:
        return None
    if key.expires_at is not None and has_expired(key):
        raise Unauthorized("key_expired", f"This key expired at {utc_text(key.expires_at)}.")
    return key


def is_valid(key: Key) -> bool:
    """Whether a key is neither revoked nor expired."""
    return key.revoked_at is None and not has_expired(key)


def has_expired(key: Key) -> bool:
    return key.expires_at is not None and key.expires_at <= now()


def is_stale(key: Key) -> bool:
    """Whether the time of a key's last use should be updated."""
    return key.last_used_at is None or now() - key.last_used_at > LAST_USED_PRECISION


def record_use(session: Session, key_id: str) -> None:
    session.execute(update(Key).where(Key.id == key_id).values(last_used_at=now()))


def revoke(session: Session, key_id: str) -> None:
    key = session.get(Key, key_id)
    if key is None or key.revoked_at is not None:
        raise NotFound("key_not_found", "This key does not exist.")
    key.revoked_at = now()
