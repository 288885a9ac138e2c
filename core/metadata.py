"""What a database must remember about itself: the secret its hashes were made with, and how people are compared."""

from __future__ import annotations

import hmac

from sqlalchemy import text
from sqlalchemy.orm import Session

from core.tables.bookkeeping import Metadata


def subjects_match(session: Session, caseless: bool) -> bool:
    """Whether the database's subjects were compared like this from the first one on.

    Only hashes of them are stored, which cannot be made anew: with the other way some people would not be found.
    """
    wanted, fact = b"caseless" if caseless else b"exact", session.get(Metadata, "subjects")
    if fact is not None and fact.value == wanted:
        return True
    if session.scalar(text("SELECT 1 FROM examples WHERE subject IS NOT NULL LIMIT 1")) is not None:
        return fact is None and not caseless
    session.merge(Metadata(name="subjects", value=wanted))
    return True


def secret_matches(session: Session, secret: bytes) -> bool:
    """Whether the database's hashes were made with this secret; the first one asked about is remembered.

    With another secret every subject would be unknown, and removals would silently remove nothing.
    """
    expected = hmac.digest(secret, b"mark of the secret", "sha256")
    fact = session.get(Metadata, "secret")
    if fact is None:
        session.add(Metadata(name="secret", value=expected))
        return True
    return hmac.compare_digest(fact.value, expected)
