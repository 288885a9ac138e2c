"""Deleting removed examples, without a worker."""

from __future__ import annotations

from sqlalchemy import delete, select

from core.database import Database
from core.lifecycle.removed_examples import has_removed_examples, purge_removed
from core.tables.erasures import Part
from core.tables.jobs import Job
from core.tables.ledger import Example
from core.tables.models import Model
from tests.core.erasure.erasure_helpers import ask, give, somebody
from tests.core.ledger.reference_ledger import new_model, remove

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
        assert has_removed_examples(session, found)
        assert purge_removed(session, found) == 1
        assert not has_removed_examples(session, found)
        left = session.scalars(select(Example.id).where(Example.model_id == model.id))
        assert set(left) == {"a", "b"}
