"""What is due when: decided from rows alone, so whoever asks, and however often, gets the same answer."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from datetime import datetime, timedelta
from typing import Any

import pytest
from sqlalchemy import select
from structlog.testing import capture_logs

from core.clock import now
from core.database import Database
from core.jobs import due_jobs
from core.models.holds import hold
from core.tables.jobs import Job, JobKind, JobState, Outbox
from core.tables.ledger import Change
from core.tables.models import Model
from core.tables.versions import VersionKind
from tests.core.jobs.rows import OWNER, add_training, enter_job, enter_version, messages, model_with, shown
from tests.core.ledger.reference_ledger import Row, add, remove

MINUTE = timedelta(minutes=1)
NEVER = {"after_changes": None, "every": None}
PATIENCE = 30.0


def adapting(**when: Any) -> dict[str, Any]:
    return {"adapt": {**NEVER, **when}, "retrain": {"every": None}}


def retraining(every: str) -> dict[str, Any]:
    return {"adapt": NEVER, "retrain": {"every": every}}


def due(database: Database, model: Model, later: timedelta = timedelta()) -> list[JobKind]:
    """Which kinds of jobs would be due that much later."""
    return [kind for kind, _ in wanted(database, model, now() + later)]


def wanted(database: Database, model: Model, moment: datetime) -> list[tuple[JobKind, datetime | None]]:
    with database.read() as session:
        return due_jobs.due_jobs(session, session.get_one(Model, model.id), moment)


def test_a_first_training_is_due_once_there_are_enough_examples_and_no_more_are_coming(database: Database) -> None:
    model = model_with(database, **adapting(after_changes=5))
    assert due(database, model, timedelta(days=1)) == []
    add_training(database, model, 3)
    assert due(database, model) == []
    assert due(database, model, due_jobs.QUIET_PERIOD) == [JobKind.ADAPT]
    enter_job(database, model, state=JobState.RUNNING)
    assert due(database, model, timedelta(days=1)) == []


def test_a_first_training_waits_no_longer_than_any_change(database: Database) -> None:
    model = model_with(database, **adapting(after_changes=2, every="1s"))
    assert due(database, model) == []
    assert due(database, model, timedelta(seconds=1.5)) == [JobKind.ADAPT]


@pytest.mark.parametrize("every", [None, "24h"])
def test_a_first_training_begins_even_if_examples_never_cease_to_come(database: Database, every: str | None) -> None:
    model = model_with(database, **adapting(after_changes=2, every=every))
    later = now() + due_jobs.MAX_QUIET_WAIT
    add_training(database, model, 1)
    with database.write() as session:
        newest = select(Change).where(Change.model_id == model.id).order_by(Change.last.desc()).limit(1)
        session.scalars(newest).one().created_at = later - timedelta(seconds=1)
    assert wanted(database, model, later - MINUTE) == []
    assert wanted(database, model, later) == [(JobKind.ADAPT, None)]


def test_a_first_training_is_tried_again_when_as_many_changes_came(database: Database) -> None:
    model = model_with(database, **adapting(after_changes=2))
    enter_job(database, model, state=JobState.FAILED, finished_at=now())
    assert due(database, model, MINUTE) == []
    add_training(database, model, 2)
    assert due(database, model, MINUTE) == [JobKind.ADAPT]


def test_no_first_training_is_due_unless_the_policy_counts_changes(database: Database) -> None:
    model = model_with(database, adapt={"after_changes": None, "every": "1s"}, retrain={"every": "1s"})
    assert due(database, model, timedelta(days=1)) == []


def test_the_tick_begins_with_models_that_have_enough_and_no_others(
    empty_database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(due_jobs, "QUIET_PERIOD", timedelta())
    few, never, held = (model_with(empty_database, **adapting(after_changes=n)) for n in (3, None, 2))
    with empty_database.write() as session:
        hold(session, session.get_one(Model, held.id), "looked at", "admin")
    model = model_with(empty_database, **adapting(after_changes=2))
    (job,) = due_jobs.enqueue_due(empty_database)
    assert (shown(empty_database, job).model_id, shown(empty_database, job).queue) == (model.id, "long")
    assert due_jobs.enqueue_due(empty_database) == []


def test_nothing_is_due_at_the_head(database: Database) -> None:
    model = model_with(database, adapt={"after_changes": 1, "every": "1s"}, retrain={"every": "1s"})
    enter_version(database, model)
    assert due(database, model, timedelta(days=1)) == []


def test_an_adaptation_is_due_after_so_many_changes(database: Database) -> None:
    model = model_with(database, **adapting(after_changes=5))
    enter_version(database, model)
    add_training(database, model, 4)
    assert due(database, model, timedelta(days=1)) == []
    remove(database, model, ["r0"])
    assert due(database, model) == [JobKind.ADAPT]


def test_an_adaptation_is_due_when_the_oldest_change_is_old_enough(database: Database) -> None:
    model = model_with(database, **adapting(every="10m"))
    enter_version(database, model)
    assert due(database, model, timedelta(days=1)) == []
    before = now()
    add_training(database, model, 1)
    after = now()
    assert wanted(database, model, before + 10 * MINUTE - timedelta(seconds=1)) == []
    assert wanted(database, model, after + 10 * MINUTE) == [(JobKind.ADAPT, None)]
    add_training(database, model, 1)
    assert wanted(database, model, after + 10 * MINUTE) == [(JobKind.ADAPT, None)]


@pytest.mark.parametrize("state", [JobState.QUEUED, JobState.RUNNING])
def test_what_a_job_is_about_to_do_is_not_due_again(database: Database, state: JobState) -> None:
    model = model_with(database, **adapting(after_changes=1, every="1m"))
    enter_version(database, model)
    add_training(database, model, 3)
    enter_job(database, model, state=state)
    assert due(database, model, 10 * MINUTE) == []


def test_changes_that_arrive_during_an_adaptation_become_due(database: Database) -> None:
    model = model_with(database, **adapting(after_changes=3))
    enter_version(database, model)
    add_training(database, model, 3)
    enter_job(database, model, state=JobState.RUNNING)
    add_training(database, model, 3)
    assert due(database, model) == [JobKind.ADAPT]


@pytest.mark.parametrize("state", [JobState.FAILED, JobState.CANCELLED])
def test_after_a_job_without_result_changes_and_time_are_counted_from_there(
    database: Database, state: JobState
) -> None:
    model = model_with(database, **adapting(after_changes=3, every="10m"))
    enter_version(database, model)
    add_training(database, model, 5)
    enter_job(database, model, state=state, finished_at=now() + 60 * MINUTE)
    add_training(database, model, 2)
    assert due(database, model, 69 * MINUTE) == []
    assert due(database, model, 71 * MINUTE) == [JobKind.ADAPT]
    add_training(database, model, 1)
    assert due(database, model) == [JobKind.ADAPT]


def test_a_model_without_training_examples_is_left_alone(database: Database) -> None:
    model = model_with(database, **adapting(after_changes=1))
    enter_version(database, model)
    remove(database, model, ["r0", "r1"])
    add(database, model, [Row("h", split=True)])
    assert due(database, model) == []


def test_a_retrain_is_due_once_the_time_since_the_models_creation_is_a_multiple(database: Database) -> None:
    model = model_with(database, **retraining("10m"))
    enter_version(database, model)
    add_training(database, model, 1)
    assert wanted(database, model, model.created_at + 9 * MINUTE) == []
    assert wanted(database, model, model.created_at + 10 * MINUTE) == [
        (JobKind.RETRAIN, model.created_at + 10 * MINUTE)
    ]


def test_of_missed_due_times_only_the_latest_is_met(database: Database) -> None:
    model = model_with(database, **retraining("10m"))
    enter_version(database, model)
    add_training(database, model, 1)
    latest = model.created_at + 50 * MINUTE
    assert wanted(database, model, latest + 3 * MINUTE) == [(JobKind.RETRAIN, latest)]
    enter_job(database, model, JobKind.RETRAIN, due_at=latest, state=JobState.FAILED)
    assert wanted(database, model, latest + 9 * MINUTE) == []
    assert wanted(database, model, latest + 10 * MINUTE) == [(JobKind.RETRAIN, latest + 10 * MINUTE)]


def test_no_retrain_is_due_if_nothing_changed_since_the_last(database: Database) -> None:
    model = model_with(database, **retraining("10m"))
    enter_version(database, model)
    assert due(database, model, 60 * MINUTE) == []
    add_training(database, model, 1)
    assert due(database, model, 60 * MINUTE) == [JobKind.RETRAIN]
    enter_version(database, model, VersionKind.ADAPTED)
    assert due(database, model, 60 * MINUTE) == [JobKind.RETRAIN]
    enter_version(database, model, VersionKind.TRAINED)
    assert due(database, model, 60 * MINUTE) == []


def test_a_retrain_made_by_hand_after_the_due_time_meets_it(database: Database) -> None:
    model = model_with(database, **retraining("10m"))
    enter_version(database, model, created_at=model.created_at + 11 * MINUTE)
    add_training(database, model, 1)
    assert due(database, model, 15 * MINUTE) == []
    assert due(database, model, 21 * MINUTE) == [JobKind.RETRAIN]


def test_a_retrain_that_waits_is_not_due_again(database: Database) -> None:
    model = model_with(database, **retraining("10m"))
    enter_version(database, model)
    add_training(database, model, 1)
    enter_job(database, model, JobKind.RETRAIN)
    assert due(database, model, 60 * MINUTE) == []


def test_a_retrain_that_runs_up_to_the_head_is_not_due_again(database: Database) -> None:
    model = model_with(database, **retraining("10m"))
    enter_version(database, model)
    add_training(database, model, 1)
    enter_job(database, model, JobKind.RETRAIN, state=JobState.RUNNING)
    assert due(database, model, 60 * MINUTE) == []
    add_training(database, model, 1)
    assert due(database, model, 60 * MINUTE) == [JobKind.RETRAIN]


def test_however_many_schedulers_ask_at_once_a_job_is_made_due_once(empty_database: Database) -> None:
    policy = {"adapt": {"after_changes": 1, "every": None}, "retrain": {"every": "1s"}}
    models = [model_with(empty_database, **policy) for _ in range(3)]
    for model in models:
        enter_version(empty_database, model, created_at=model.created_at - MINUTE)
        add_training(empty_database, model, 1)
        backdate(empty_database, model)
    with ThreadPoolExecutor(6) as pool:
        made = [job for jobs in pool.map(lambda _: due_jobs.enqueue_due(empty_database), range(6)) for job in jobs]
    with empty_database.read() as session:
        jobs = session.scalars(select(Job)).all()
        assert sorted((job.model_id, job.kind) for job in jobs) == [
            (model.id, kind) for model in models for kind in (JobKind.ADAPT, JobKind.RETRAIN)
        ]
        assert len(session.scalars(select(Outbox)).all()) == len(jobs)
    assert set(made) == {job.id for job in jobs}


def backdate(database: Database, model: Model) -> None:
    """Let the model be a minute older, so that something is due by now."""
    with database.write() as session:
        session.get_one(Model, model.id).created_at -= MINUTE


def test_the_log_has_the_reason_for_a_job_once(empty_database: Database) -> None:
    model = model_with(empty_database, adapt={"after_changes": 3, "every": "10m"}, retrain={"every": None})
    enter_version(empty_database, model)
    add_training(empty_database, model, 2)
    with capture_logs() as logs:
        due_jobs.enqueue_due(empty_database)
        due_jobs.enqueue_due(empty_database)
        add_training(empty_database, model, 1)
        (job,) = due_jobs.enqueue_due(empty_database)
        due_jobs.enqueue_due(empty_database)
        with empty_database.write() as session:
            hold(session, session.get_one(Model, model.id), "looked at", "admin")
        due_jobs.enqueue_due(empty_database)
    assert {line["model"] for line in logs} == {model.name}
    assert [(line["event"], line["reason"]) for line in logs] == [
        ("job_not_due", "too few changes are pending, and none for long enough"),
        ("job_enqueued", "3 changes are pending, 3 suffice"),
        ("job_not_due", "a job is already queued"),
        ("job_not_due", "the model is held"),
    ]
    assert logs[1]["job"] == job


class Sent(list[tuple[str, str]]):
    """What was sent, in place of a broker."""

    def __call__(self, job_id: str, queue: str) -> None:
        self.append((job_id, queue))


def test_the_reconciler_sends_what_waits_to_be_sent_once(empty_database: Database) -> None:
    model = model_with(empty_database)
    job, sent = enter_job(empty_database, model), Sent()
    assert due_jobs.reconcile(empty_database, sent, PATIENCE) == 1
    assert due_jobs.reconcile(empty_database, sent, PATIENCE) == 0
    assert sent == [(job, "long")]
    assert shown(empty_database, job).sent_at is not None
    assert messages(empty_database, job) == 0


def test_a_job_that_no_worker_took_is_sent_again(empty_database: Database) -> None:
    model = model_with(empty_database)
    job, sent = enter_job(empty_database, model), Sent()
    due_jobs.reconcile(empty_database, Sent(), PATIENCE)
    with empty_database.write() as session:
        session.get_one(Job, job).sent_at = now() - timedelta(seconds=PATIENCE + 1)
    assert due_jobs.reconcile(empty_database, sent, PATIENCE) == 1
    assert due_jobs.reconcile(empty_database, sent, PATIENCE) == 0


def test_a_job_whose_lease_ended_is_sent_again_at_once_and_then_after_a_while(empty_database: Database) -> None:
    model = model_with(empty_database)
    job, sent = enter_job(empty_database, model), Sent()
    due_jobs.reconcile(empty_database, Sent(), PATIENCE)
    with empty_database.write() as session:
        row = session.get_one(Job, job)
        row.state, row.lease_owner, row.lease_expires_at = JobState.RUNNING, OWNER, now() + MINUTE
    assert due_jobs.reconcile(empty_database, sent, PATIENCE) == 0
    with empty_database.write() as session:
        session.get_one(Job, job).lease_expires_at = now() - timedelta(milliseconds=1)
        session.get_one(Job, job).sent_at = now() - timedelta(seconds=1)
    assert due_jobs.reconcile(empty_database, sent, PATIENCE) == 1
    assert due_jobs.reconcile(empty_database, sent, PATIENCE) == 0


def test_a_job_that_waits_for_another_of_its_kind_is_not_sent_again(empty_database: Database) -> None:
    model = model_with(empty_database)
    enter_job(empty_database, model, state=JobState.RUNNING, lease_expires_at=now() + MINUTE)
    waiting = enter_job(empty_database, model)
    due_jobs.reconcile(empty_database, Sent(), PATIENCE)
    with empty_database.write() as session:
        session.get_one(Job, waiting).sent_at = now() - 10 * MINUTE
    assert due_jobs.reconcile(empty_database, Sent(), PATIENCE) == 0


def test_what_the_broker_refuses_stays_to_be_sent(empty_database: Database) -> None:
    def refuse(job_id: str, queue: str) -> None:
        raise ConnectionError

    job = enter_job(empty_database, model_with(empty_database))
    with pytest.raises(ConnectionError):
        due_jobs.reconcile(empty_database, refuse, PATIENCE)
    assert messages(empty_database, job) == 1
    assert shown(empty_database, job).sent_at is None
