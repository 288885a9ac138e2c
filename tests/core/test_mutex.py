"""Leases by name: one owner at a time."""

from __future__ import annotations

import uuid
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta

import pytest

from core import mutex
from core.database import Database, now
from core.tables.bookkeeping import Mutex


@pytest.fixture
def name() -> str:
    return uuid.uuid4().hex


def expire(database: Database, name: str) -> None:
    with database.write() as session:
        session.get_one(Mutex, name).until = now() - timedelta(milliseconds=1)


def test_of_many_who_ask_at_once_one_gets_it(database: Database, name: str) -> None:
    for _ in range(3):  # the first ever, and after it ended
        with ThreadPoolExecutor(8) as pool:
            got = list(pool.map(lambda i: mutex.acquire(database, name, f"owner-{i}", 60), range(8)))
        assert sum(got) == 1
        expire(database, name)


def test_the_owner_may_extend_it_and_nobody_else(database: Database, name: str) -> None:
    assert mutex.acquire(database, name, "a", 60)
    assert mutex.acquire(database, name, "a", 60)
    assert not mutex.acquire(database, name, "b", 60)


def test_after_its_time_another_gets_it_and_the_owner_before_does_not(database: Database, name: str) -> None:
    mutex.acquire(database, name, "a", 60)
    expire(database, name)
    assert mutex.acquire(database, name, "b", 60)
    assert not mutex.acquire(database, name, "a", 60)


def test_one_given_back_is_free_at_once(database: Database, name: str) -> None:
    mutex.acquire(database, name, "a", 60)
    mutex.release(database, name, "a")
    assert mutex.acquire(database, name, "b", 60)


def test_nobody_gives_back_what_another_has(database: Database, name: str) -> None:
    mutex.acquire(database, name, "a", 60)
    mutex.release(database, name, "b")
    mutex.release(database, "never taken", "b")
    assert not mutex.acquire(database, name, "b", 60)
