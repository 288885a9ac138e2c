"""Browsers that are signed in with a key: a random token in a cookie, whose hash is in the database.

The row is deleted when the browser signs out, and invalid once it expires or the key is revoked.
"""

import hashlib
import secrets
from datetime import timedelta

from sqlalchemy import delete, select
from sqlalchemy.orm import Session

from core.clock import now
from core.keys.api_keys import is_valid
from core.tables.keys import Key, SignIn

LIFETIME = timedelta(hours=12)
"""A working day: a browser that was left signed in is signed out by the next morning."""


def sign_in(session: Session, key_id: str) -> str:
    """Sign a browser in; returns the token for its cookie. Expired sign-ins are deleted."""
    session.execute(delete(SignIn).where(SignIn.expires_at < now()))
    token = secrets.token_urlsafe(32)
    session.add(SignIn(digest=digest(token), key_id=key_id, expires_at=now() + LIFETIME))
    return token


def find_key(session: Session, token: str) -> Key | None:
    """The key that a browser is signed in with; None if it is not, or not any longer."""
    row = session.get(SignIn, digest(token))
    key = session.get(Key, row.key_id) if row is not None and row.expires_at > now() else None
    return key if key is not None and is_valid(key) else None


def has_session(session: Session, key_id: str) -> bool:
    """Whether a browser is signed in with a key."""
    open_one = select(SignIn.key_id).where(SignIn.key_id == key_id, SignIn.expires_at > now()).limit(1)
    return session.scalar(open_one) is not None


def end_sessions(session: Session, key_id: str) -> None:
    session.execute(delete(SignIn).where(SignIn.key_id == key_id))


def sign_out(session: Session, token: str) -> None:
    session.execute(delete(SignIn).where(SignIn.digest == digest(token)))


def digest(token: str) -> bytes:
    # 256 random bits cannot be guessed, as for keys
    return hashlib.sha256(token.encode()).digest()
