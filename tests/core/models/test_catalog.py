"""Models by name: finding, visibility, locking, and no confusion with deleted models of the same name."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from concurrent.futures import TimeoutError as NotYet

import pytest

from core.database import Database
from core.errors import Conflict, NotFound
from core.models import catalog
from core.models.policy import Policy
from core.models.training_options import TrainingSchema
from tests.core.ledger.reference_ledger import locked, new_model


def test_two_models_cannot_have_the_same_name(database: Database) -> None:
    model = new_model(database)
    with pytest.raises(Conflict), database.write() as session:
        catalog.create(session, model.name, model.spec, TrainingSchema(), Policy())


def test_a_model_that_is_not_visible_is_not_found(database: Database) -> None:
    name = new_model(database).name
    with database.read() as session:
        assert catalog.find(session, name, None).name == catalog.find(session, name, {name}).name == name
        for visible in (set(), {"other"}):
            with pytest.raises(NotFound):
                catalog.find(session, name, visible)


def test_pages_are_in_the_order_of_names_and_hold_visible_models_only(empty_database: Database) -> None:
    names = sorted(new_model(empty_database).name for _ in range(5))
    with empty_database.read() as session:
        assert [m.name for m in catalog.page(session, None, "", 3)] == names[:3]
        assert [m.name for m in catalog.page(session, None, names[2], 3)] == names[3:]
        assert [m.name for m in catalog.page(session, {names[0], names[4]}, "", 3)] == [names[0], names[4]]


def test_writers_of_one_model_wait_for_each_other_and_see_what_the_first_wrote(database: Database) -> None:
    model = new_model(database)

    def advance() -> int:
        with database.write() as session:
            found = catalog.find(session, model.name, None, lock=True)
            found.head += 1
            return found.head

    with ThreadPoolExecutor(1) as threads:
        with database.write() as session:
            found = catalog.find(session, model.name, None, lock=True)
            second = threads.submit(advance)
            with pytest.raises(NotYet):
                second.result(0.3)
            found.head += 1
        assert second.result(30) == 2


def test_the_id_of_a_deleted_model_is_not_reused(empty_database: Database) -> None:
    model = new_model(empty_database)
    locked(empty_database, model, lambda s, m: s.delete(m))
    assert new_model(empty_database).id > model.id
