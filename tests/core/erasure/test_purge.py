"""Deleting the examples of a person, without a worker."""

from __future__ import annotations

from core.database import Database
from core.erasure import purge
from core.ledger import holdout_sample
from core.versions.store import Store
from tests.core.erasure.erasure_helpers import ask, parts, somebody
from tests.core.ledger.reference_ledger import Row, add, new_model


def test_a_holdout_sample_with_deleted_examples_is_drawn_again(database: Database) -> None:
    model, person = new_model(database), somebody()
    add(database, model, [Row("a", subject=person, split=True), Row("b", split=True), Row("c", split=False)])
    holdout_sample.update_sample(database, model.id, 3, 10)
    part = parts(database, ask(database, person).id)[model.name]

    def found() -> int:
        with database.read() as session:
            empty = Store(f"memory://{model.name}")
            return purge.find_traces(session, empty, part, [], set(), 0)["rows of the holdout's sample"]

    assert found() == 1
    with database.write() as session:
        purge.delete_examples(session, session.merge(model), [3])
    assert found() == 1
    with database.write() as session:
        assert purge.delete_examples(session, session.merge(model), part.positions) == 1
    assert found() == 0
    assert holdout_sample.update_sample(database, model.id, 4, 10).rows.tolist() == [2]
