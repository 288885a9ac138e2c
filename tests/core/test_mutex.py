"""Named mutexes: one owner at a time."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from core import clock, mutex
from core.database import Database
from tests.clock import VirtualClock


@pytest.fixture
def name() -> str:
    return uuid.uuid4().hex


@pytest.fixture
def time() -> Iterator[VirtualClock]:
    virtual = VirtualClock()
    with clock.use(virtual):
        yield virtual


def test_one_of_many_concurrent_owners_acquires_the_mutex(database: Database, name: str, time: VirtualClock) -> None:
    for _ in range(3):  # the first ever, and after it ended
        with ThreadPoolExecutor(8) as pool:
            got = list(pool.map(lambda i: mutex.acquire(database, name, f"owner-{i}", 60), range(8)))
        assert sum(got) == 1
        time.advance(61)


def test_only_the_owner_can_extend_the_mutex(database: Database, name: str) -> None:
    assert mutex.acquire(database, name, "a", 60)
    assert mutex.acquire(database, name, "a", 60)
    assert not mutex.acquire(database, name, "b", 60)


def test_an_expired_mutex_goes_to_another_owner(database: Database, name: str, time: VirtualClock) -> None:
    mutex.acquire(database, name, "a", 60)
    time.advance(59)
    assert not mutex.acquire(database, name, "b", 60)
    time.advance(2)
    assert mutex.acquire(database, name, "b", 60)
    assert not mutex.acquire(database, name, "a", 60)


def test_a_released_mutex_is_free_at_once(database: Database, name: str) -> None:
    mutex.acquire(database, name, "a", 60)
    mutex.release(database, name, "a")
    assert mutex.acquire(database, name, "b", 60)


def test_only_the_owner_can_release_the_mutex(database: Database, name: str) -> None:
    mutex.acquire(database, name, "a", 60)
    mutex.release(database, name, "b")
    mutex.release(database, "never taken", "b")
    assert not mutex.acquire(database, name, "b", 60)
