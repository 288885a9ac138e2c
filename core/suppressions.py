"""Recognising people whose data was erased, if data about them returns.

An erasure deletes the hash of its subject. What stays, for a limited time, is another keyed hash: it says whether a
given subject was erased, but nothing else, and only to the holder of the secret.
"""

import hmac
import json
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from datetime import datetime

from sqlalchemy import delete, text
from sqlalchemy.orm import Session

from core.clock import now
from core.database import Database, rows_changed
from core.settings import Settings, parse_days
from core.tables.audit import Suppression

NEWEST = "SELECT NULL, COALESCE(MAX(id), 0) FROM suppressions"


def hash_of(subject: bytes, secret: bytes) -> str:
    """The hash of a subject, which is itself given as a keyed hash."""
    return hmac.digest(secret, b"suppression:" + subject, "sha256").hex()


def suppress(session: Session, subject: bytes) -> datetime:
    """Remember a person whose erasure is completed in this transaction; returns until when."""
    settings: Settings = session.info["settings"]
    hashed = hash_of(subject, settings.secret)
    session.execute(delete(Suppression).where(Suppression.hash == hashed))
    expires_at = now() + parse_days(settings.returning_retention)
    session.add(Suppression(hash=hashed, expires_at=expires_at))
    session.flush()
    return expires_at


def lift(session: Session, subjects: Collection[bytes]) -> None:
    """Forget that these people were erased, because somebody accepted new data about them."""
    secret = session.info["settings"].secret
    for subject in subjects:
        session.execute(delete(Suppression).where(Suppression.hash == hash_of(subject, secret)))


def delete_expired(session: Session) -> int:
    """Delete the hashes whose retention period has ended."""
    return rows_changed(session, delete(Suppression).where(Suppression.expires_at < now()))


@dataclass(frozen=True)
class Screened:
    """The result of checking the subjects of a batch."""

    newest: int
    """Id of the newest suppression that the check considered; -1 if no example of the batch has a subject."""
    returning: frozenset[int]
    """Indices of the examples about people whose data was erased."""


NOBODY = Screened(-1, frozenset())


class Screen:
    """Checks batches, with at most one query each, and with none while the process knows that nobody is suppressed.

    That knowledge may be outdated: whoever stores a batch without a lock compares `Screened.newest` with the table, in
    the statement that stores it (`core.ledger.positions`).
    """

    def __init__(self, settings: Settings) -> None:
        self.secret = settings.secret
        self.treatment = settings.returning_subjects
        self._empty = False

    def check(self, database: Database, subjects: Sequence[bytes | None]) -> Screened:
        """Check a batch before it is stored."""
        if subjects.count(None) == len(subjects):
            return NOBODY
        if self._empty:
            return Screened(0, frozenset())
        with database.read() as session:
            return self.check_now(session, subjects)

    def check_now(self, session: Session, subjects: Sequence[bytes | None]) -> Screened:
        """Check a batch within the transaction that stores it."""
        if subjects.count(None) == len(subjects):
            return NOBODY
        hashes = {hash_of(subject, self.secret): subject for subject in set(subjects) if subject is not None}
        found, newest = find(session, list(hashes))
        self._empty = newest == 0
        returning = {hashes[hashed] for hashed in found}
        return Screened(newest, frozenset(i for i, subject in enumerate(subjects) if subject in returning))


def find(session: Session, hashes: Sequence[str]) -> tuple[set[str], int]:
    """Which of the hashes are suppressed, and the id of the newest suppression, in one query."""
    sqlite = session.get_bind().dialect.name == "sqlite"
    # one parameter: SQLite allows no more than 32 766
    among = "IN (SELECT value FROM json_each(:hashes))" if sqlite else "= ANY(:hashes)"
    query = f"SELECT hash, 0 FROM suppressions WHERE hash {among} UNION ALL {NEWEST}"
    rows = session.execute(text(query), {"hashes": json.dumps(hashes) if sqlite else list(hashes)}).all()
    return {hashed for hashed, _ in rows if hashed is not None}, max(newest for _, newest in rows)
