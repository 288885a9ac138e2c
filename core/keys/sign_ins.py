"""Browsers that are signed in with a key: a random token in a cookie, whose hash is in the database.

The row is deleted on signing out, and invalid once it expires or its key is revoked.
"""

from __future__ import annotations

import hashlib
import secrets
from datetime import timedelta

from sqlalchemy import delete
from sqlalchemy.orm import Session

from core.database import now
from core.keys.keyring import is_valid
from core.tables.keys import Key, SignIn

LIFETIME = timedelta(hours=12)
"""A working day: a browser that was left signed in is signed out by the next morning."""


def sign_in(session: Session, key_id: str) -> str:
    """Sign a browser in; returns the token for its cookie. Expired sign-ins are deleted."""
    session.execute(delete(SignIn).where(SignIn.until < now()))
    token = secrets.token_urlsafe(32)
    session.add(SignIn(digest=digest(token), key_id=key_id, until=now() + LIFETIME))
    return token


def find_key(session: Session, token: str) -> Key | None:
    """The key that a browser is signed in with; None if it is not signed in, or no longer."""
    found = session.get(SignIn, digest(token))
    key = session.get(Key, found.key_id) if found is not None and found.until > now() else None
    return key if key is not None and is_valid(key) else None


def sign_out(session: Session, token: str) -> None:
    session.execute(delete(SignIn).where(SignIn.digest == digest(token)))


def digest(token: str) -> bytes:
    # 256 random bits: as for keys, there is nothing to guess
    return hashlib.sha256(token.encode()).digest()
