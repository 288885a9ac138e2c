"""Jobs: due once, joined by whoever asks again, cancelled."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from sqlalchemy import func, select
from sqlalchemy.exc import IntegrityError
from sqlalchemy.orm import Session

from core.database import Database
from core.errors import Conflict
from core.jobs import leases, queue
from core.tables.jobs import ENDED, Job, JobKind, JobState, Outbox, in_state
from core.tables.models import Model
from core.tables.versions import Version, VersionKind, VersionState
from tests.core.ledger.reference_ledger import Row, add, locked, new_model


@pytest.fixture
def model(database: Database) -> Model:
    model = new_model(database)
    add(database, model, [Row("a"), Row("b")])
    return model


def due(database: Database, model: Model, kind: JobKind = JobKind.ADAPT, request_id: str | None = None) -> str:
    job_id: str = locked(database, model, lambda s, m: queue.enqueue(s, m, kind, request_id).id)
    return job_id


def on_job(database: Database, job_id: str, act: Callable[[Session, Job], Any]) -> Any:
    with database.write() as session:
        return act(session, session.get_one(Job, job_id))


def cancelled(session: Session, job: Job) -> None:
    leases.cancel(job)


def shown(database: Database, job_id: str) -> Job:
    with database.read() as session:
        return session.get_one(Job, job_id)


def messages(database: Database, job_id: str) -> int:
    with database.read() as session:
        return session.scalar(select(func.count()).select_from(Outbox).where(Outbox.job_id == job_id)) or 0


def test_a_due_job_is_queued_up_to_the_head_with_one_message(database: Database, model: Model) -> None:
    job_id = due(database, model, request_id="r-1")
    job = shown(database, job_id)
    assert (job.state, job.from_position, job.to_position, job.request_id) == (JobState.QUEUED, 0, 2, "r-1")
    assert messages(database, job_id) == 1


def test_a_repeated_request_joins_the_waiting_job(database: Database, model: Model) -> None:
    first = due(database, model)
    add(database, model, [Row("c")])
    assert due(database, model) == first
    assert shown(database, first).to_position == 3
    assert messages(database, first) == 1
    assert due(database, model, JobKind.RETRAIN) != first


def test_a_running_job_is_not_joined(database: Database, model: Model) -> None:
    first = due(database, model)
    on_job(database, first, lambda _, job: setattr(job, "state", JobState.RUNNING))
    second = due(database, model)
    assert second != first


@pytest.mark.parametrize("state", [JobState.QUEUED, JobState.RUNNING])
def test_the_database_itself_refuses_a_second_job_of_a_kind(database: Database, model: Model, state: JobState) -> None:
    def job(name: str) -> Job:
        return Job(
            id=f"{name}-{model.id}", model_id=model.id, kind=JobKind.ADAPT, state=state, from_position=0, to_position=1
        )

    with database.write() as session:
        session.add(job(f"{state}-1"))
    with pytest.raises(IntegrityError), database.write() as session:
        session.add(job(f"{state}-2"))


def test_an_adaptation_begins_where_the_champion_stands_and_a_retrain_at_the_start(
    database: Database, model: Model
) -> None:
    def enter(session: Session, row: Model) -> None:
        values = {"method": "retrain", "memory": {}, "metrics": {}, "cost": {}, "sha256": "", "file": ""}
        state = {"kind": VersionKind.TRAINED, "state": VersionState.CHAMPION, "position": 2}
        session.add(Version(model_id=row.id, number=1, dataset_digest="0" * 64, **state, **values))
        row.champion = row.tip = 1

    assert locked(database, model, lambda s, m: queue.enqueue_adaptation(s, m, None)) is None
    locked(database, model, enter)
    add(database, model, [Row("c")])
    adapt = locked(database, model, lambda s, m: queue.enqueue_adaptation(s, m, None))
    assert (shown(database, adapt).from_position, shown(database, adapt).to_position) == (2, 3)
    assert shown(database, due(database, model, JobKind.RETRAIN)).from_position == 0


def test_a_queued_job_is_cancelled_at_once_and_another_can_follow(database: Database, model: Model) -> None:
    job_id = due(database, model)
    on_job(database, job_id, cancelled)
    job = shown(database, job_id)
    assert job.state is JobState.CANCELLED
    assert job.finished_at is not None
    assert due(database, model) != job_id


def test_a_running_job_is_asked_to_stop(database: Database, model: Model) -> None:
    job_id = due(database, model)
    on_job(database, job_id, lambda _, job: setattr(job, "state", JobState.RUNNING))
    on_job(database, job_id, lambda _, job: setattr(job, "lease_owner", "somebody"))
    on_job(database, job_id, cancelled)
    job = shown(database, job_id)
    assert (job.state, job.cancel_requested) == (JobState.RUNNING, True)


def test_a_job_that_was_handed_back_is_cancelled_at_once(database: Database, model: Model) -> None:
    job_id = due(database, model)
    on_job(database, job_id, lambda _, job: setattr(job, "state", JobState.RUNNING))
    on_job(database, job_id, cancelled)
    assert shown(database, job_id).state is JobState.CANCELLED


@pytest.mark.parametrize("state", ENDED)
def test_an_ended_job_cannot_be_cancelled(database: Database, model: Model, state: JobState) -> None:
    job_id = due(database, model)
    on_job(database, job_id, lambda _, job: setattr(job, "state", state))
    with pytest.raises(Conflict):
        on_job(database, job_id, cancelled)


def test_jobs_go_with_their_model(database: Database, model: Model) -> None:
    job_id = due(database, model)
    locked(database, model, lambda s, m: s.delete(m))
    with database.read() as session:
        assert session.get(Job, job_id) is None
    assert messages(database, job_id) == 0


def test_jobs_that_have_ended_are_not_read_to_find_one_that_waits(database: Database, model: Model) -> None:
    if not database.sqlite:
        pytest.skip("PostgreSQL chooses by its statistics")
    for state in (JobState.QUEUED, JobState.RUNNING):
        query = select(Job.id).where(Job.model_id == model.id, Job.kind == JobKind.ADAPT, in_state(state))
        compiled = query.compile(database.engine)
        values = tuple(compiled.params[name] for name in compiled.positiontup or ())
        with database.engine.connect() as connection:
            [plan] = connection.exec_driver_sql(f"EXPLAIN QUERY PLAN {compiled}", values)
        assert f"uq_jobs_{state}" in plan[-1]
