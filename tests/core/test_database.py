"""Transactions, readers and writers, and errors of an unavailable database."""

from __future__ import annotations

import os
import socket
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta, timezone

import pytest
import sqlalchemy as sa
from sqlalchemy import func, select

from core.clock import now
from core.database import Database
from core.errors import Unavailable
from core.settings import Settings
from core.tables.jobs import Worker

SOON = 10.0
"""Seconds in which everything here must happen; far below the usual patience."""


def worker(name: str) -> Worker:
    return Worker(name=name, seen_at=now())


def names(database: Database, like: str) -> list[str]:
    with database.read() as session:
        return list(session.scalars(select(Worker.name).where(Worker.name.like(f"{like}%")).order_by(Worker.name)))


@contextmanager
def impatient(settings: Settings, **other: object) -> Iterator[Database]:
    database = Database(settings.model_copy(update={"database_timeout": 0.3, **other}))
    yield database
    database.close()


@contextmanager
def held(database: Database, name: str) -> Iterator[None]:
    """Another thread holds the lock on a row, or on all of SQLite."""
    taken, leave = threading.Event(), threading.Event()

    def hold() -> None:
        with database.write() as session:
            session.execute(sa.update(Worker).where(Worker.name == name).values(seen_at=now()))
            taken.set()
            leave.wait(2 * SOON)

    with ThreadPoolExecutor(1) as threads:
        holding = threads.submit(hold)
        try:
            assert taken.wait(SOON)
            yield
        finally:
            leave.set()
        holding.result()


def test_a_write_is_committed_at_its_end(database: Database) -> None:
    with database.write() as session:
        session.add_all([worker("whole-1"), worker("whole-2")])
        session.flush()
        assert names(database, "whole") == []
    assert names(database, "whole") == ["whole-1", "whole-2"]


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt])
def test_a_failed_write_is_rolled_back_completely(database: Database, error: type[BaseException]) -> None:
    def fail() -> None:
        with database.write() as session:
            session.add(worker("failed-1"))
            session.flush()
            with session.begin_nested():
                session.add(worker("failed-2"))
            raise error

    with pytest.raises(error):
        fail()
    assert names(database, "failed") == []
    with database.write() as session:  # and nothing stays locked
        session.execute(select(func.count()).select_from(Worker))


def test_a_reader_does_not_wait_for_a_writer(database: Database) -> None:
    with database.write() as session:
        session.add(worker("reading"))
    with held(database, "reading"):
        assert names(database, "reading") == ["reading"]


def test_a_read_stores_nothing(database: Database) -> None:
    with database.read() as session:
        session.add(worker("read-only"))
        session.flush()
    assert names(database, "read-only") == []


def test_waiting_too_long_for_another_process_raises_unavailable(database: Database, settings: Settings) -> None:
    with database.write() as session:
        session.add(worker("busy"))
    with impatient(settings) as other, held(database, "busy"):
        started = time.monotonic()
        with pytest.raises(Unavailable), other.write() as session:
            session.execute(sa.update(Worker).where(Worker.name == "busy").values(seen_at=now()))
        assert time.monotonic() - started < SOON


def test_waiting_too_long_for_another_thread_raises_unavailable(database: Database, settings: Settings) -> None:
    with database.write() as session:
        session.add(worker("busy-within"))

    def write(other: Database) -> None:
        with other.write() as session:
            session.execute(sa.update(Worker).where(Worker.name == "busy-within").values(seen_at=now()))

    with impatient(settings) as other, ThreadPoolExecutor(1) as threads, held(other, "busy-within"):
        waiting = threads.submit(write, other)
        with pytest.raises(Unavailable):
            waiting.result(SOON)


def test_an_exhausted_connection_pool_raises_unavailable(settings: Settings) -> None:
    with impatient(settings, pool_size=1, pool_overflow=0) as other, other.read() as session:
        session.execute(select(1))
        with pytest.raises(Unavailable) as busy, other.read() as second:
            second.execute(select(1))
    assert busy.value.code == "database_busy"


def test_a_database_that_cannot_be_reached_raises_unavailable(settings: Settings) -> None:
    url = "postgresql+psycopg://nobody@127.0.0.1:1/none"
    if Database(settings).sqlite:
        url = "sqlite:////no/such/folder/amend.db"
    with impatient(settings, database_url=url) as other, pytest.raises(Unavailable), other.read() as session:
        session.execute(select(1))


def test_a_lost_connection_is_noticed_within_a_minute_while_a_response_is_pending(database: Database) -> None:
    if database.sqlite:
        pytest.skip("there is no connection to lose")
    with database.read() as session:
        own = session.connection().connection.driver_connection
        assert own is not None
        with socket.socket(fileno=os.dup(own.fileno())) as wire:
            assert wire.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT) == 60_000
        assert session.scalar(sa.text("SHOW tcp_user_timeout")) == "60000"


def test_times_are_read_in_utc(database: Database) -> None:
    east = datetime(2026, 1, 1, 12, tzinfo=timezone(timedelta(hours=2)))
    with database.write() as session:
        session.add_all([Worker(name="utc", seen_at=east.astimezone(UTC)), Worker(name="east", seen_at=east)])
    with database.read() as session:
        for name in ("utc", "east"):
            seen = session.get_one(Worker, name).seen_at
            assert seen == east
            assert seen.utcoffset() == timedelta(0)


def test_error_messages_contain_no_values(database: Database) -> None:
    with pytest.raises(sa.exc.IntegrityError) as error, database.write() as session:
        session.add_all([worker("person-7"), worker("person-7")])
    assert "person-7" not in str(error.value.statement)
    assert error.value.hide_parameters
