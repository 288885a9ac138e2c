"""Deleting removed examples, without a worker."""

from __future__ import annotations

from sqlalchemy import delete, select

from core.database import Database
from core.erasure import purge
from core.ledger import holdout
from core.tables.erasures import Part
from core.tables.jobs import Job
from core.tables.ledger import Example
from core.tables.models import Model
from core.versions.store import Store
from tests.core.erasure.erasure_helpers import ask, give, parts, somebody
from tests.core.ledger.reference_ledger import Row, add, new_model, remove

MANY = 40_000
"""More than the parameters of one statement on SQLite."""


def test_examples_of_a_held_erasure_stay_however_many_they_are(database: Database) -> None:
    model, person = new_model(database), somebody()
    give(database, model, person, "a", "b")
    give(database, model, somebody(), "c")
    id = ask(database, person, hold=True).id
    remove(database, model, ["c"])
    with database.write() as session:
        session.execute(delete(Job).where(Job.model_id == model.id))  # while any waits, nothing is deleted
        part = session.get_one(Part, (id, model.id))
        part.restricted = [*part.restricted, *range(1000, 1000 + MANY)]
    with database.write() as session:
        found = session.get_one(Model, model.id)
        assert purge.has_removed_examples(session, found)
        assert purge.purge_removed(session, found) == 1
        assert not purge.has_removed_examples(session, found)
        left = session.scalars(select(Example.id).where(Example.model_id == model.id))
        assert set(left) == {"a", "b"}


def test_a_sample_of_the_holdout_that_names_deleted_examples_is_made_anew(database: Database) -> None:
    model, person = new_model(database), somebody()
    add(database, model, [Row("a", subject=person, split=True), Row("b", split=True), Row("c", split=False)])
    holdout.update_sample(database, model.id, 3, 10)
    part = parts(database, ask(database, person).id)[model.name]

    def found() -> int:
        with database.read() as session:
            empty = Store(f"memory://{model.name}")
            return purge.find_traces(session, empty, part, None, set(), 0)["rows of the holdout's sample"]

    assert found() == 1
    with database.write() as session:
        purge.delete_examples(session, model.id, [3])
    assert found() == 1
    with database.write() as session:
        assert purge.delete_examples(session, model.id, part.positions) == 1
    assert found() == 0
    assert holdout.update_sample(database, model.id, 4, 10).rows.tolist() == [2]
