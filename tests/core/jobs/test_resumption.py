"""What a hold keeps from coming due, and what it does not."""

from __future__ import annotations

from datetime import timedelta

from core.clock import now
from core.database import Database
from core.jobs import due_jobs, resumption
from core.lifecycle import erase_schedule
from core.models import holds
from core.tables.jobs import JobKind
from core.tables.models import Model
from tests.core.jobs.rows import add_training, enter_version, model_with
from tests.core.ledger.reference_ledger import locked, remove, stored

EAGER = {"adapt": {"after_changes": 1, "every": "1s"}, "retrain": {"every": "1s"}}


def wanted(database: Database, model: Model) -> list[JobKind]:
    with database.read() as session:
        row, moment = session.get_one(Model, model.id), now() + timedelta(days=1)
        found = erase_schedule.decide_erase(session, row, moment) + due_jobs.decide_jobs(session, row, moment)
        return [decision.kind for decision in found if decision.due]


def hold(database: Database, model: Model) -> None:
    locked(database, model, lambda session, row: holds.hold(session, row, "held by hand", "key"))


def resume(database: Database, model: Model) -> str | None:
    job: str | None = locked(database, model, lambda session, row: resumption.resume(session, row, None))
    return job


def test_nothing_is_due_by_the_policy_while_a_model_is_held(empty_database: Database) -> None:
    model = model_with(empty_database, **EAGER)
    enter_version(empty_database, model, created_at=now() - timedelta(days=1))
    add_training(empty_database, model, 5)
    assert wanted(empty_database, model) == [JobKind.ADAPT, JobKind.RETRAIN]
    hold(empty_database, model)
    assert wanted(empty_database, model) == []
    assert due_jobs.enqueue_due(empty_database) == []
    assert resume(empty_database, model) is not None
    assert stored(empty_database, model).held_at is None


def test_what_was_removed_is_deleted_though_a_model_is_held(database: Database) -> None:
    model = model_with(database, **EAGER)
    remove(database, model, ["r0"])
    enter_version(database, model)
    hold(database, model)
    assert wanted(database, model) == [JobKind.ERASE]


def test_a_model_that_was_never_trained_resumes_to_nothing(database: Database) -> None:
    model = model_with(database, **EAGER)
    hold(database, model)
    assert resume(database, model) is None
