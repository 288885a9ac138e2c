"""Properties of the database as a whole: the secret of its hashes, and whether subjects are compared without case."""

import hmac

from sqlalchemy import text
from sqlalchemy.orm import Session

from core.tables.bookkeeping import Metadata


def subjects_match(session: Session, caseless: bool) -> bool:
    """Whether all subjects in the database were hashed with this setting, which is stored with the first one.

    Only hashes are stored and they cannot be recomputed: after a change of the setting, subjects would not be found.
    """
    wanted, stored = b"caseless" if caseless else b"exact", session.get(Metadata, "subjects")
    if stored is not None and stored.value == wanted:
        return True
    if session.scalar(text("SELECT 1 FROM examples WHERE subject IS NOT NULL LIMIT 1")) is not None:
        return stored is None and not caseless
    session.merge(Metadata(name="subjects", value=wanted))
    return True


def secret_matches(session: Session, secret: bytes) -> bool:
    """Whether the database's hashes were made with this secret. The first call stores a hash of the secret.

    With another secret every subject would be unknown, and removals would silently remove nothing.
    """
    expected = hmac.digest(secret, b"check of the secret", "sha256")
    stored = session.get(Metadata, "secret")
    if stored is None:
        session.add(Metadata(name="secret", value=expected))
        return True
    return hmac.compare_digest(stored.value, expected)
