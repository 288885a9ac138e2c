"""Bulk reads and writes raise the same errors as the rest of the database, though they bypass SQLAlchemy."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import pyarrow as pa
import pytest
from sqlalchemy import text
from sqlalchemy.exc import IntegrityError
from sqlalchemy.orm import Session

from core.database import Database, release_locks_early
from core.errors import Unavailable
from core.ledger import bulk, passes
from core.ledger.batch import Batch
from core.tables.models import Model
from tests.core.conftest import MakeSettings, migrated
from tests.core.ledger.reference_ledger import Row, add, contents, new_model


@pytest.fixture
def database(make_settings: MakeSettings) -> Iterator[Database]:
    """One that gives up soon."""
    yield from migrated(make_settings(database_timeout=0.5))


@pytest.fixture
def model(database: Database) -> Model:
    model = new_model(database)
    add(database, model, [Row("a", split=False)])
    return model


def store(session: Session, model: Model, id_: str) -> None:
    batch = Batch(pa.array([id_]), [None], np.zeros((1, 2), np.float32), np.zeros(1), [False])
    bulk.insert(session, model.id, 100, batch, np.zeros(1, bool))


@contextmanager
def in_the_way(database: Database) -> Iterator[None]:
    """Examples can be neither read nor written: somebody holds their table, or it has moved."""
    if not database.sqlite:
        with database.write() as session:
            session.execute(text("LOCK TABLE examples"))
            yield
        return
    with database.write() as session:
        session.execute(text("ALTER TABLE examples RENAME TO elsewhere"))
    yield
    with database.write() as session:
        session.execute(text("ALTER TABLE elsewhere RENAME TO examples"))


def insert(database: Database, model: Model, id_: str) -> None:
    with database.write() as session:
        store(session, model, id_)


def test_an_id_that_is_in_force_is_an_integrity_error_without_the_id(database: Database, model: Model) -> None:
    with pytest.raises(IntegrityError) as error:
        insert(database, model, "a")
    assert "Key (" not in f"{error.value} {error.value.orig} {error.value.__cause__}"
    assert error.value.params is None


@pytest.mark.parametrize("subjects", [[None, None], [bytes(32), None]])
@pytest.mark.parametrize("withheld", [[False, False], [True, True], [True, False]])
def test_each_row_has_its_own_split_and_subject(
    database: Database, model: Model, withheld: list[bool], subjects: list[bytes | None]
) -> None:
    batch = Batch(pa.array(["b", "c"]), subjects, np.ones((2, 2), np.float32), np.arange(2.0), withheld)
    with database.write() as session:
        bulk.insert(session, model.id, 100, batch, np.array(withheld))
    query = "SELECT id, position, holdout, y, subject FROM examples WHERE model_id = :m AND position >= 100 ORDER BY 2"
    with database.read() as session:
        found = session.execute(text(query), {"m": model.id}).all()
    rows = [(id_, at, bool(held), y, subject and bytes(subject)) for id_, at, held, y, subject in found]
    assert rows == [("b", 100, withheld[0], 0.0, subjects[0]), ("c", 101, withheld[1], 1.0, subjects[1])]


def test_an_insert_into_a_locked_database_raises_unavailable(database: Database, model: Model) -> None:
    with in_the_way(database), pytest.raises(Unavailable):
        insert(database, model, "b")
    assert contents(passes.read_in_force(database, model.id, model.spec, 1000)).keys() == {1}


def test_a_pass_over_a_locked_database_raises_unavailable(database: Database, model: Model) -> None:
    found = passes.read_in_force(database, model.id, model.spec, 1)
    with in_the_way(database), pytest.raises(Unavailable):
        contents(found)
    assert contents(found).keys() == {1}


@pytest.mark.parametrize("inserted", [False, True], ids=["before", "after"])
def test_a_connection_lost_before_or_after_an_insert_raises_unavailable_and_is_replaced(
    database: Database, model: Model, inserted: bool
) -> None:
    if database.sqlite:
        pytest.skip("SQLite has no connection to lose")

    def lose_and_insert() -> None:
        with database.write() as session:
            release_locks_early(session)
            if inserted:
                store(session, model, "b")
            number = session.scalar(text("SELECT pg_backend_pid()"))
            with database.write() as other:
                other.execute(text("SELECT pg_terminate_backend(:number, 5000)"), {"number": number})
            if not inserted:
                store(session, model, "b")

    with pytest.raises(Unavailable):
        lose_and_insert()
    assert contents(passes.read_in_force(database, model.id, model.spec, 1000)).keys() == {1}
