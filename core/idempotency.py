"""Responses kept for repeated requests, written in the transaction of the request itself.

A response may contain data that is stored nowhere else (a new key, unknown ids), so it is encrypted with the caller's
credentials and cannot be read from the database alone.
"""

import base64
import hashlib
import hmac
from dataclasses import dataclass
from datetime import timedelta

from cryptography.fernet import Fernet
from sqlalchemy import delete, update
from sqlalchemy.orm import Session

from core.clock import now
from core.database import dialect_insert
from core.errors import Conflict
from core.tables.bookkeeping import IdempotencyRecord


@dataclass(frozen=True)
class RepeatableRequest:
    """A request with an idempotency key."""

    credential: str
    key: str
    fingerprint: bytes
    """Digest of method, path and body."""

    @property
    def key_digest(self) -> bytes:
        return hashlib.sha256(f"{self.credential}\n{self.key}".encode()).digest()

    @property
    def request_digest(self) -> bytes:
        # without a key, anyone with the database could guess the request, and whom it is about
        return hmac.digest(self.secret("request"), self.fingerprint, "sha256")

    @property
    def cipher(self) -> Fernet:
        return Fernet(base64.urlsafe_b64encode(self.secret("response")))

    def secret(self, purpose: str) -> bytes:
        return hashlib.sha256(f"{purpose}\n{self.credential}\n{self.key}".encode()).digest()


def claim(session: Session, attempt: RepeatableRequest, age: timedelta) -> tuple[int, bytes] | None:
    """Claim the key for this request; returns status and body of the first response if there was one, else None.

    Raises Conflict if the key was used for another request. The claim is a row of this transaction: a concurrent
    request waits for its end. Responses older than `age` are deleted.
    """
    session.execute(
        delete(IdempotencyRecord).where(
            IdempotencyRecord.key_digest == attempt.key_digest, IdempotencyRecord.created_at < now() - age
        )
    )
    claim = dialect_insert(session, IdempotencyRecord).values(
        key_digest=attempt.key_digest, request_digest=attempt.request_digest, status=0, body=b"", created_at=now()
    )
    if session.execute(claim.on_conflict_do_nothing().returning(IdempotencyRecord.status)).first():
        return None
    first = session.get_one(IdempotencyRecord, attempt.key_digest)
    if first.request_digest != attempt.request_digest:
        raise Conflict("idempotency_conflict", "This Idempotency-Key was used for a different request. Use a new key.")
    return first.status, attempt.cipher.decrypt(first.body)


def store(session: Session, attempt: RepeatableRequest, status: int, body: bytes) -> None:
    """Store the response of a claimed request."""
    claimed = update(IdempotencyRecord).where(IdempotencyRecord.key_digest == attempt.key_digest)
    session.execute(claimed.values(status=status, body=attempt.cipher.encrypt(body)))


def delete_old(session: Session, age: timedelta) -> None:
    """Delete responses that have expired."""
    session.execute(delete(IdempotencyRecord).where(IdempotencyRecord.created_at < now() - age))
