"""Responses kept for repeated requests, written in the transaction of the request itself.

A response may contain what is stored nowhere else (a new key, ids that were unknown), so it is encrypted with the
caller's credentials: it cannot be read from the database alone.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
from dataclasses import dataclass
from datetime import timedelta

from cryptography.fernet import Fernet
from sqlalchemy import delete
from sqlalchemy.orm import Session

from core.database import dialect_insert, now
from core.errors import Conflict
from core.tables.bookkeeping import Answer


@dataclass(frozen=True)
class RepeatableRequest:
    """A request with an idempotency key, by which a repetition is recognised."""

    credential: str
    key: str
    fingerprint: bytes
    """Digest of method, path and body."""

    @property
    def digest(self) -> bytes:
        return hashlib.sha256(f"{self.credential}\n{self.key}".encode()).digest()

    @property
    def request(self) -> bytes:
        # a digest without a key would let anybody with the database guess what was asked, and for whom
        return hmac.digest(self.secret("request"), self.fingerprint, "sha256")

    @property
    def cipher(self) -> Fernet:
        return Fernet(base64.urlsafe_b64encode(self.secret("answer")))

    def secret(self, purpose: str) -> bytes:
        return hashlib.sha256(f"{purpose}\n{self.credential}\n{self.key}".encode()).digest()


def claim(session: Session, attempt: RepeatableRequest, age: timedelta) -> tuple[int, bytes] | None:
    """Claim the key for this request; returns status and body of the first response if there was one, else None.

    Raises Conflict if the key was used for another request. The claim is a row of this transaction: a concurrent
    request waits for its end. Responses older than `age` are deleted.
    """
    session.execute(delete(Answer).where(Answer.digest == attempt.digest, Answer.created_at < now() - age))
    claim = dialect_insert(session, Answer).values(
        digest=attempt.digest, request=attempt.request, status=0, body=b"", created_at=now()
    )
    if session.execute(claim.on_conflict_do_nothing().returning(Answer.status)).first():
        return None
    first = session.get_one(Answer, attempt.digest)
    if first.request != attempt.request:
        raise Conflict("idempotency_conflict", "This Idempotency-Key was used for another request.")
    return first.status, attempt.cipher.decrypt(first.body)


def store(session: Session, attempt: RepeatableRequest, status: int, body: bytes) -> None:
    """Store the response of a claimed request."""
    answer = session.get_one(Answer, attempt.digest)
    answer.status, answer.body = status, attempt.cipher.encrypt(body)


def delete_old(session: Session, age: timedelta) -> None:
    """Delete responses that have expired."""
    session.execute(delete(Answer).where(Answer.created_at < now() - age))
