"""Issuing, checking and revoking keys. A key is `amend_<id>_<secret>`; the id finds the row, the secret proves it."""

from __future__ import annotations

import hashlib
import hmac
import re
import secrets
from collections.abc import Sequence
from datetime import datetime, timedelta

from sqlalchemy import update
from sqlalchemy.orm import Session

from core.database import now, utc_text
from core.errors import Invalid, NotFound, Unauthorized
from core.tables.keys import Key, Scope

KEY_PATTERN = re.compile(r"amend_([a-z0-9]{8,20})_([A-Za-z0-9_-]{20,100})")
MAX_LIFETIME = timedelta(days=36525)
LAST_USED_PRECISION = timedelta(minutes=1)
"""`last_used_at` is at most this much behind: a write for every request would cost more than the request."""


def issue(
    session: Session,
    name: str,
    scopes: Sequence[Scope],
    models: list[str] | None,
    expires_at: datetime | None = None,
) -> tuple[Key, str]:
    """Issue a key; returns it with its text, which is shown to its owner once."""
    if expires_at is not None and not timedelta() < expires_at - now() < MAX_LIFETIME:
        place = ("expires_at",)
        raise Invalid.at(place, "key_invalid", "must be to come, and within a hundred years")
    text = f"amend_{secrets.token_hex(6)}_{secrets.token_urlsafe(32)}"
    key, _ = add(session, text, name, scopes, models)
    key.expires_at = expires_at
    return key, text


def add(session: Session, text: str, name: str, scopes: Sequence[Scope], models: list[str] | None) -> tuple[Key, str]:
    """Add a key whose text is given, as an operator may do for the first one; returns it with its text."""
    found = KEY_PATTERN.fullmatch(text)
    if not found:
        raise Invalid("key_invalid", "A key has the form amend_<8-20 of a-z 0-9>_<20-100 of A-Z a-z 0-9 _ ->.")
    key = Key(id=found[1], name=name, digest=digest(found[2]), scopes=[s.value for s in scopes], models=models)
    session.add(key)
    session.flush()
    return key, text


def digest(secret: str) -> bytes:
    # secrets have 256 random bits: there is nothing to guess, and so nothing that a slow hash would slow down
    return hashlib.sha256(secret.encode()).digest()


def check(session: Session, text: str) -> Key | None:
    """The key with this text; None if it is unknown, wrong or revoked. Raises Unauthorized if it expired."""
    found = KEY_PATTERN.fullmatch(text)
    key = session.get(Key, found[1]) if found else None
    # an unknown id costs the same comparison as a wrong secret
    matches = hmac.compare_digest(key.digest if key else bytes(32), digest(found[2] if found else ""))
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
        raise NotFound("key_not_found", "There is no such key.")
    key.revoked_at = now()
