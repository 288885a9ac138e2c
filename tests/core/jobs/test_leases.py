"""Leases of jobs: one owner at a time, and nothing is written by whoever is not."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from typing import Any

import pytest
from sqlalchemy.orm import Session

from core.clock import now
from core.database import Database
from core.jobs import leases, queue, retries
from core.jobs.leases import JobCancelled, JobLost
from core.tables.jobs import Job, JobKind, JobState
from core.tables.models import Model
from tests.core.jobs.rows import OTHER, OWNER, add_training, enter_job, enter_version, messages, model_with, shown
from tests.core.ledger.reference_ledger import locked

MOST = 3
SECONDS = 60.0


@pytest.fixture
def model(database: Database) -> Model:
    return model_with(database)


@pytest.fixture
def job(database: Database, model: Model) -> str:
    return enter_job(database, model)


def take(database: Database, job: str, owner: str = OWNER, seconds: float = SECONDS) -> bool:
    """Whether the owner got it."""
    with database.write() as session:
        found = leases.take(session, job, owner, seconds, MOST)
        return found is not None and found[0].state is JobState.RUNNING


def expire(database: Database, job: str) -> None:
    with database.write() as session:
        session.get_one(Job, job).lease_expires_at = now() - timedelta(milliseconds=1)


def written_by(database: Database, job: str, owner: str, act: Callable[[Session, Job, Model], Any]) -> None:
    """What a worker writes when it is done, in its one transaction."""
    with database.write() as session:
        act(session, *leases.require_owned(session, job, owner))


def succeed(session: Session, job: Job, model: Model) -> None:
    job.version = 7
    leases.end(job, JobState.SUCCEEDED, "done")
    queue.enqueue_next(session, job)


def test_one_of_many_concurrent_workers_takes_the_lease(database: Database, model: Model) -> None:
    for _ in range(5):
        job = enter_job(database, model)
        with ThreadPoolExecutor(8) as pool:
            won = list(pool.map(lambda i, job=job: take(database, job, f"owner-{i}"), range(8)))  # type: ignore[misc]
        assert sum(won) == 1
        found = shown(database, job)
        assert (found.state, found.attempts, found.lease_owner) == (JobState.RUNNING, 1, f"owner-{won.index(True)}")
        written_by(database, job, f"owner-{won.index(True)}", succeed)


def test_one_of_many_concurrent_workers_takes_an_expired_lease(database: Database, job: str) -> None:
    take(database, job, "the first")
    expire(database, job)
    with ThreadPoolExecutor(8) as pool:
        won = list(pool.map(lambda i: take(database, job, f"owner-{i}"), range(8)))
    assert sum(won) == 1
    assert shown(database, job).attempts == 2


def test_a_model_runs_one_job_of_a_kind_at_a_time(database: Database, model: Model) -> None:
    first = enter_job(database, model)
    take(database, first)
    second, retrain = enter_job(database, model), enter_job(database, model, JobKind.RETRAIN)
    assert not take(database, second, OTHER)
    assert take(database, retrain, OTHER)
    written_by(database, first, OWNER, succeed)
    assert messages(database, second) == 2  # as it became due, and now that it can be taken
    assert take(database, second, OTHER)


def test_a_job_covers_all_changes_up_to_the_moment_of_its_lease(database: Database, model: Model) -> None:
    enter_version(database, model)
    job = enter_job(database, model)
    add_training(database, model, 3)
    take(database, job)
    found = shown(database, job)
    assert (found.from_position, found.to_position) == (2, 5)
    assert found.started_at is not None


@pytest.mark.parametrize("state", [JobState.SUCCEEDED, JobState.FAILED, JobState.CANCELLED])
def test_an_ended_job_is_not_taken(database: Database, job: str, state: JobState) -> None:
    with database.write() as session:
        session.get_one(Job, job).state = state
    assert not take(database, job)


def test_a_job_that_is_not_there_is_not_taken(database: Database) -> None:
    assert not take(database, "no such job")


def test_an_extended_lease_is_not_taken_over(database: Database, job: str) -> None:
    take(database, job)
    expire(database, job)
    leases.extend(database, job, OWNER, SECONDS, 0.4, "half way")
    assert not take(database, job, OTHER)
    found = shown(database, job)
    assert (found.progress, found.message, found.lease_owner) == (0.4, "half way", OWNER)


def test_a_worker_without_its_lease_can_neither_extend_it_nor_write(database: Database, job: str) -> None:
    take(database, job)
    expire(database, job)
    assert take(database, job, OTHER)
    with pytest.raises(JobLost):
        leases.extend(database, job, OWNER, SECONDS, 0.9, "still here")
    with pytest.raises(JobLost):
        written_by(database, job, OWNER, succeed)
    found = shown(database, job)
    assert (found.state, found.version, found.lease_owner, found.message) == (
        JobState.RUNNING,
        None,
        OTHER,
        "Started",
    )
    written_by(database, job, OTHER, succeed)
    with pytest.raises(JobLost):
        written_by(database, job, OWNER, succeed)


def test_an_expired_lease_is_valid_until_another_worker_takes_the_job(database: Database, job: str) -> None:
    take(database, job)
    expire(database, job)
    written_by(database, job, OWNER, succeed)
    assert shown(database, job).state is JobState.SUCCEEDED


def test_one_of_many_concurrent_writers_writes(database: Database, model: Model, job: str) -> None:
    take(database, job)

    def attempt(_: int) -> bool:
        try:
            written_by(database, job, OWNER, succeed)
            return True
        except JobLost:
            return False

    with ThreadPoolExecutor(6) as pool:
        assert sum(pool.map(attempt, range(6))) == 1


def test_a_job_is_lost_with_its_model(database: Database, model: Model, job: str) -> None:
    take(database, job)
    locked(database, model, lambda s, m: s.delete(m))
    with pytest.raises(JobLost):
        leases.extend(database, job, OWNER, SECONDS, 0.5, "")
    with pytest.raises(JobLost):
        written_by(database, job, OWNER, succeed)


def test_a_cancelled_job_is_neither_extended_nor_written_nor_begun_again(
    database: Database, model: Model, job: str
) -> None:
    take(database, job)
    locked(database, model, lambda s, m: leases.cancel(s.get_one(Job, job)))
    with pytest.raises(JobCancelled):
        leases.extend(database, job, OWNER, SECONDS, 0.5, "")
    with pytest.raises(JobCancelled):
        written_by(database, job, OWNER, succeed)
    expire(database, job)
    assert not take(database, job, OTHER)
    found = shown(database, job)
    assert (found.state, found.lease_owner, found.version) == (JobState.CANCELLED, None, None)


def fail(database: Database, job: str) -> None:
    error = {"code": "solver_failed", "detail": "too steep"}
    written_by(database, job, OWNER, lambda s, j, _: retries.fail_attempt(s, j, error, MOST, pause=0.0))


def test_a_job_fails_after_its_attempts_with_a_reason(database: Database, job: str) -> None:
    for attempt in range(1, MOST + 1):
        assert take(database, job)
        assert shown(database, job).attempts == attempt
        fail(database, job)
    assert not take(database, job)
    found = shown(database, job)
    assert (found.state, found.attempts) == (JobState.FAILED, MOST)
    assert found.error == {"code": "solver_failed", "detail": "too steep"}
    assert found.message == "Failed after 3 attempts: too steep"
    assert found.started_at is not None
    assert found.finished_at is not None
    assert found.seconds == (found.finished_at - found.started_at).total_seconds() > 0


def test_success_after_a_failed_attempt_leaves_no_error(database: Database, job: str) -> None:
    take(database, job)
    fail(database, job)
    assert shown(database, job).error is not None
    take(database, job)
    written_by(database, job, OWNER, succeed)
    assert shown(database, job).error is None


def test_workers_that_are_lost_count_as_attempts(database: Database, job: str) -> None:
    for _ in range(MOST):
        assert take(database, job)
        expire(database, job)
    assert not take(database, job)
    found = shown(database, job)
    assert found.state is JobState.FAILED
    assert found.error is not None
    assert found.error["code"] == "worker_lost"
    assert "out of memory" in found.error["detail"]


def test_between_attempts_a_job_rests(database: Database, job: str) -> None:
    take(database, job)
    written_by(database, job, OWNER, lambda s, j, _: retries.fail_attempt(s, j, {"code": "", "detail": ""}, MOST, 60))
    assert not take(database, job, OTHER)
    expire(database, job)
    assert take(database, job, OTHER)


def test_a_released_job_is_announced_and_can_be_taken_at_once(database: Database, job: str) -> None:
    take(database, job)
    before = messages(database, job)
    written_by(database, job, OWNER, lambda s, j, _: retries.release(s, j, "handed back"))
    assert messages(database, job) == before + 1
    with pytest.raises(JobLost):
        written_by(database, job, OWNER, succeed)
    assert take(database, job, OTHER)


def test_a_long_message_is_cut(database: Database, job: str) -> None:
    take(database, job)
    leases.extend(database, job, OWNER, SECONDS, 0.5, "x" * 10_000)
    assert len(shown(database, job).message) == leases.MAX_MESSAGE_LENGTH
