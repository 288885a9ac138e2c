"""A confirmed batch survives an immediate crash of PostgreSQL, though its locks are released before the flush."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest

from core.ledger import additions, passes
from core.settings import Settings
from tests.core.conftest import migrated
from tests.core.ledger.reference_ledger import DRAW, Row, batch, contents, new_model, stored
from tests.servers import PostgresServer, Program, connects, conninfo, start_postgres


@pytest.fixture
def server() -> Iterator[PostgresServer]:
    """One that writes to disk only what it must: its own writer, which would do so soon anyway, sleeps."""
    server = start_postgres(durable=True)
    with psycopg.connect(conninfo(server.url), autocommit=True) as connection:
        connection.execute("ALTER SYSTEM SET wal_writer_delay = '10s'")
        connection.execute("SELECT pg_reload_conf()")
    yield server
    server.stop()


def crash(server: PostgresServer) -> None:
    """End a server without a chance to write anything, and start it again."""
    program = server.program
    assert isinstance(program, Program)
    assert program.process is not None
    program.process.send_signal(signal.SIGQUIT)
    program.process.wait()
    command = program.process.args
    assert isinstance(command, list)
    program.start([str(part) for part in command], lambda: connects(server.url))


def test_a_batch_that_was_stored_survives_a_crash_of_the_database(server: PostgresServer, tmp_path: Path) -> None:
    for database in migrated(Settings(home=tmp_path, database_url=server.create_database("ledger"))):
        rows = batch([Row(f"{i}", split=False) for i in range(100)])
        one, other = new_model(database), new_model(database)
        with database.write() as session:
            additions.add_new(session, one.id, DRAW, rows)
        crash(server)
        database.close()  # its connections are gone
        additions.add_alone(database, other.id, DRAW, rows)
        crash(server)
        database.close()
        for model in (one, other):
            assert stored(database, model).head == 100
            assert len(contents(passes.read_in_force(database, model.id, model.spec, 100))) == 100
