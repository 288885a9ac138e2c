"""Adding a batch in its own transaction: equal to separate statements, and all or nothing."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator

import pytest
from psycopg import sql
from sqlalchemy import text
from sqlalchemy.exc import IntegrityError
from sqlalchemy.orm import Session

from core.database import Database
from core.errors import Unavailable
from core.ledger import Added, additions, bulk, passes
from core.models.policy import HoldoutPolicy
from core.tables.models import Model
from tests.core.conftest import MakeSettings, migrated
from tests.core.ledger.reference_ledger import DRAW, HOLDOUT, Row, batch, contents, locked, new_model, runs, stored
from tests.servers import PostgresServer

ABC = [Row("a", (1.5, -2.0), 1.0, "s", False), Row("bcd", (0.0, 7.0), 0.0, None, True), Row("\u00e9", split=False)]


@pytest.fixture
def database(make_settings: MakeSettings) -> Iterator[Database]:
    """One that gives up soon, with few connections: what is wrong with one afterwards is seen by the next."""
    yield from migrated(make_settings(database_timeout=1, pool_size=2, pool_overflow=1))


@pytest.fixture
def model(database: Database) -> Model:
    return new_model(database)


def alone(database: Database, model: Model, rows: list[Row]) -> Added | None:
    return additions.add_alone(database, model.id, DRAW, batch(rows))


def test_appending_in_one_message_stores_the_same_as_separate_statements(database: Database, model: Model) -> None:
    other = new_model(database)
    assert alone(database, model, ABC) == Added(3, 0, 1, 3)
    with database.write() as session:
        assert additions.add_new(session, other.id, DRAW, batch(ABC)) == Added(3, 0, 1, 3)
    for at in (2, 3):
        mine, theirs = (contents(passes.read_in_force(database, m.id, m.spec, at)) for m in (model, other))
        assert mine == theirs
    assert runs(database, model) == runs(database, other)
    counts = [(m.head, m.train_count, m.holdout_count) for m in (stored(database, model), stored(database, other))]
    assert counts == [(3, 2, 1)] * 2


def test_a_large_batch_is_sent_in_chunks(database: Database, model: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bulk, "COPY_ROWS", 3)
    rows = [Row(f"{'x' * i}", (float(i), 0.0), split=False) for i in range(1, 12)]
    assert alone(database, model, ABC) == Added(3, 0, 1, 3)
    assert alone(database, model, rows) == Added(11, 0, 4, 14)
    found = contents(passes.read_in_force(database, model.id, model.spec, 14))
    assert [found[position][0][0] for position in range(4, 15)] == [float(i) for i in range(1, 12)]


def test_another_holdout_fraction_or_a_missing_model_returns_none_and_stores_nothing(
    database: Database, model: Model
) -> None:
    assert additions.add_alone(database, model.id, HoldoutPolicy(fraction=HOLDOUT / 2), batch(ABC)) is None
    assert additions.add_alone(database, model.id + 1, DRAW, batch(ABC)) is None
    assert stored(database, model).head == 0
    assert alone(database, model, ABC) == Added(3, 0, 1, 3)


def test_an_id_in_force_is_an_error_without_the_id_and_nothing_is_stored(database: Database, model: Model) -> None:
    alone(database, model, ABC)
    with pytest.raises(IntegrityError) as error:
        alone(database, model, [Row("new"), Row("bcd")])
    assert "bcd" not in f"{error.value} {error.value.orig} {error.value.__cause__}"
    assert stored(database, model).head == 3
    assert alone(database, model, [Row("new")]) == Added(1, 0, 4, 4)


def test_a_failure_while_encoding_rows_stores_nothing(
    database: Database, model: Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    if database.sqlite:
        pytest.skip("SQLite takes rows as they are")
    monkeypatch.setattr(bulk, "COPY_ROWS", 1)
    lay_out_chunk, calls = bulk.lay_out_chunk, []

    def fail(*given: object) -> bulk.CopyChunk:
        calls.append(given)
        if len(calls) == 3:
            raise MemoryError
        return lay_out_chunk(*given)  # type: ignore[arg-type]

    monkeypatch.setattr(bulk, "lay_out_chunk", fail)
    with pytest.raises(MemoryError):
        alone(database, model, ABC)
    assert stored(database, model).head == 0
    assert alone(database, model, ABC) == Added(3, 0, 1, 3)


def while_held(database: Database, model: Model, waiting: Callable[[Session], None]) -> None:
    """Try to add to a model that another holds, who does something when that waits; it is unavailable."""
    refused: list[bool] = []

    def meanwhile() -> None:
        with pytest.raises(Unavailable):
            alone(database, model, ABC)
        refused.append(True)

    def hold(session: Session, _: Model) -> None:
        thread = threading.Thread(target=meanwhile)
        thread.start()
        waiting(session)
        thread.join()

    locked(database, model, hold)
    assert refused
    assert alone(database, model, ABC) == Added(3, 0, 1, 3)


def test_a_lock_that_is_held_for_too_long_raises_unavailable(database: Database, model: Model) -> None:
    while_held(database, model, lambda _: None)


def test_a_lost_connection_raises_unavailable_and_is_replaced(database: Database, model: Model) -> None:
    if database.sqlite:
        pytest.skip("SQLite has no connection to lose")

    def lose(session: Session) -> None:
        end = time.monotonic() + 0.9
        while not session.scalars(text("SELECT pg_terminate_backend(pid) FROM pg_locks WHERE NOT granted")).all():
            assert time.monotonic() < end
            time.sleep(0.01)

    while_held(database, model, lose)


@pytest.fixture
def standby(database: Database, postgres: PostgresServer) -> Iterator[Callable[[bool], None]]:
    """Has connections from now on take no writes, or take them again, as if another server were in charge."""
    name = sql.Identifier(database.engine.url.database or "")

    def be(on: bool) -> None:
        value = sql.SQL("on" if on else "off")
        postgres.execute(sql.SQL("ALTER DATABASE {} SET default_transaction_read_only = {}").format(name, value))

    yield be
    be(False)


def test_a_read_only_server_raises_unavailable_and_its_connections_are_dropped(
    request: pytest.FixtureRequest, database: Database, model: Model
) -> None:
    if database.sqlite:
        pytest.skip("SQLite has no server")
    be_standby: Callable[[bool], None] = request.getfixturevalue("standby")

    def written() -> None:
        with database.write() as session:
            session.get_one(Model, model.id, with_for_update=True)

    for write in (lambda: alone(database, model, ABC), written):
        be_standby(True)
        database.close()
        with pytest.raises(Unavailable) as told:
            write()
        assert told.value.code == "database_unavailable"
        be_standby(False)
        write()  # by another connection: that one would go on refusing
    assert stored(database, model).head == 3
