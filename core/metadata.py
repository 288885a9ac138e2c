"""Properties of the database as a whole: the secret of its hashes, whether subjects are compared without case, whether
it was restored from a backup, and when the scheduler last ran."""

import hmac
from datetime import datetime

from sqlalchemy import text
from sqlalchemy.orm import Session

from core.clock import now
from core.tables.bookkeeping import Metadata

SCHEDULER = "scheduler"
RESTORED = "restored"


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


def secret_check(secret: bytes) -> bytes:
    """The hash by which a secret is recognised."""
    return hmac.digest(secret, b"check of the secret", "sha256")


def secret_matches(session: Session, secret: bytes) -> bool:
    """Whether the database's hashes were made with this secret. The first call stores a hash of the secret.

    With another secret every subject would be unknown, and removals would silently remove nothing.
    """
    expected = secret_check(secret)
    stored = session.get(Metadata, "secret")
    if stored is None:
        session.add(Metadata(name="secret", value=expected))
        return True
    return hmac.compare_digest(stored.value, expected)


def record_restore(session: Session) -> None:
    """Record that the database was restored from a backup, so it may lack versions that MLflow has."""
    session.merge(Metadata(name=RESTORED, value=now().isoformat().encode()))


def was_restored(session: Session) -> bool:
    return session.get(Metadata, RESTORED) is not None


def record_tick(session: Session) -> None:
    """Record that the scheduler is at work."""
    session.merge(Metadata(name=SCHEDULER, value=now().isoformat().encode()))


def last_tick(session: Session) -> datetime | None:
    """When a scheduler was last at work; None if none has ever been."""
    row = session.get(Metadata, SCHEDULER)
    return None if row is None else datetime.fromisoformat(row.value.decode())
