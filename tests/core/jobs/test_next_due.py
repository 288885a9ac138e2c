"""What is told of the future is what the schedule then does."""

from __future__ import annotations

from datetime import datetime, timedelta

from core.clock import now
from core.database import Database
from core.jobs import due_jobs
from core.jobs.next_due import Outlook, find_outlook
from core.tables.jobs import JobKind
from core.tables.models import Model
from tests.core.jobs.rows import add_training, enter_version, model_with

INSTANT = timedelta(seconds=1)
POLICY = {"adapt": {"after_changes": 10, "every": "10m"}, "retrain": {"every": "7d"}}


def outlook(database: Database, model: Model) -> Outlook:
    with database.read() as session:
        return find_outlook(session, session.get_one(Model, model.id), now())


def due(database: Database, model: Model, moment: datetime) -> set[JobKind]:
    with database.read() as session:
        return {kind for kind, _ in due_jobs.due_jobs(session, session.get_one(Model, model.id), moment)}


def test_jobs_come_when_they_were_said_to(database: Database) -> None:
    model = model_with(database, **POLICY)
    enter_version(database, model)
    add_training(database, model, 4)
    told = outlook(database, model)
    assert told.adapt_after == 6
    assert told.adapt_at is not None
    assert told.retrain_at is not None
    assert due(database, model, told.adapt_at - INSTANT) == set()
    assert due(database, model, told.adapt_at) == {JobKind.ADAPT}
    assert due(database, model, told.retrain_at - INSTANT) == {JobKind.ADAPT}
    assert due(database, model, told.retrain_at + INSTANT) == {JobKind.ADAPT, JobKind.RETRAIN}
    add_training(database, model, told.adapt_after)
    assert outlook(database, model).adapt_after == 0
    assert due(database, model, now()) == {JobKind.ADAPT}


def test_where_nothing_changed_only_changes_bring_work(database: Database) -> None:
    model = model_with(database, **POLICY)
    assert outlook(database, model) == Outlook(adapt_after=8)  # which trains it
    enter_version(database, model)
    assert outlook(database, model) == Outlook(adapt_after=10)


def test_a_held_model_logs_no_reasons(database: Database) -> None:
    model = model_with(database, **POLICY)
    enter_version(database, model)
    add_training(database, model, 4)
    with database.write() as session:
        session.get_one(Model, model.id).held_at = now()
    assert outlook(database, model) == Outlook()
