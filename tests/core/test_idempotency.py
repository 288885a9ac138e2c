"""Stored responses for repeated requests: returned only to their caller, and unreadable in the database."""

from __future__ import annotations

import hashlib
import uuid
from dataclasses import replace
from datetime import timedelta

import pytest

from core import idempotency
from core.database import Database
from core.errors import Conflict
from core.idempotency import RepeatableRequest
from core.tables.bookkeeping import IdempotencyRecord


@pytest.fixture
def attempt() -> RepeatableRequest:
    return RepeatableRequest("amend_key", f"word-{uuid.uuid4().hex}", b"request")


def carry_out(database: Database, attempt: RepeatableRequest, body: bytes = b"the answer") -> tuple[int, bytes] | None:
    with database.write() as session:
        first = idempotency.claim(session, attempt, timedelta(days=1))
        if first is None:
            idempotency.store(session, attempt, 201, body)
        return first


def test_a_repeated_request_gets_the_first_response(database: Database, attempt: RepeatableRequest) -> None:
    assert carry_out(database, attempt) is None
    assert carry_out(database, attempt, b"another") == (201, b"the answer")


def test_the_same_idempotency_key_for_another_request_is_rejected(
    database: Database, attempt: RepeatableRequest
) -> None:
    carry_out(database, attempt)
    with pytest.raises(Conflict):
        carry_out(database, replace(attempt, fingerprint=b"other"))


def test_idempotency_keys_of_different_api_keys_are_separate(database: Database, attempt: RepeatableRequest) -> None:
    carry_out(database, attempt)
    assert carry_out(database, replace(attempt, credential="amend_other", fingerprint=b"other")) is None


def test_a_request_that_failed_can_be_repeated(database: Database, attempt: RepeatableRequest) -> None:
    def fail() -> None:
        with database.write() as session:
            idempotency.claim(session, attempt, timedelta(days=1))
            raise LookupError

    with pytest.raises(LookupError):
        fail()
    assert carry_out(database, attempt) is None


def test_the_database_alone_reveals_neither_response_nor_idempotency_key(
    database: Database, attempt: RepeatableRequest
) -> None:
    carry_out(database, attempt)
    with database.read() as session:
        row = session.get_one(IdempotencyRecord, attempt.key_digest)
        columns = [getattr(row, column.name) for column in IdempotencyRecord.__table__.columns]
    for value in columns:
        assert "the answer" not in str(value)
        assert attempt.key not in str(value)


def test_old_responses_are_deleted(empty_database: Database, attempt: RepeatableRequest) -> None:
    carry_out(empty_database, attempt)
    for age, kept in ((timedelta(hours=1), True), (timedelta(seconds=-1), False)):
        with empty_database.write() as session:
            idempotency.delete_old(session, age)
        with empty_database.read() as session:
            assert (session.get(IdempotencyRecord, attempt.key_digest) is not None) is kept


def test_the_stored_request_digest_reveals_nothing_without_the_key(database: Database) -> None:
    fingerprint = hashlib.sha256(b"who is it about").digest()
    one, other = (RepeatableRequest(key, "word", fingerprint) for key in ("amend_one", "amend_other"))
    assert one.request_digest not in (fingerprint, other.request_digest)
    assert one.request_digest == RepeatableRequest("amend_one", "word", fingerprint).request_digest
