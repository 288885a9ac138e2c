"""Shards of a shared pass: each is added up by one at a time, and none is lost with whoever had it."""

from __future__ import annotations

from collections.abc import Collection
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta

import pytest
from sqlalchemy import update

from core.database import Database, now
from core.jobs import leases, queries, shards
from core.jobs.leases import Lost
from core.tables.jobs import Job, JobKind, JobState, Shard
from core.versions.store import Stored
from tests.core.jobs.rows import OTHER, OWNER, enter_job, model_with

QUESTION, SUMS = Stored("models/1/q", "0" * 64), Stored("models/1/s", "1" * 64)


@pytest.fixture
def job(database: Database) -> str:
    """A job that OWNER runs, with a pass of five shards to share."""
    job = enter_job(database, model_with(database))
    with database.write() as session:
        assert leases.take(session, job, OWNER, 60.0, 3) is not None
    shards.create(database, job, OWNER, QUESTION, 5)
    return job


def taken(database: Database, job: str, seconds: float = 60.0, known: Collection[int] = ()) -> Shard:
    """What another worker got."""
    found = shards.take(database, job, OTHER, seconds, known)
    assert found is not None
    return found


def test_asker_and_helpers_meet_in_the_middle(database: Database, job: str) -> None:
    assert [shards.take_own(database, job, OWNER) for _ in range(2)] == [0, 1]
    assert [taken(database, job).number for _ in range(2)] == [4, 3]
    assert taken(database, job, known={0, 2}).number == 2
    assert shards.take(database, job, OTHER, 60.0, ()) is None
    assert shards.take_own(database, job, OWNER) is None


def test_each_is_taken_once(database: Database, job: str) -> None:
    shards.create(database, job, OWNER, QUESTION, 12)  # another pass of the same job
    with ThreadPoolExecutor(4) as threads:
        mine = [threads.submit(shards.take_own, database, job, OWNER) for _ in range(6)]
        theirs = [threads.submit(shards.take, database, job, f"h{i}", 60.0, ()) for i in range(6)]
        numbers = [each.result() for each in mine] + [found.number for each in theirs if (found := each.result())]
    got = [number for number in numbers if number is not None]
    while (number := shards.take_own(database, job, OWNER)) is not None:  # skipped where another held the row
        got.append(number)
    assert sorted(got) == list(range(12))


def test_what_a_silent_helper_had_is_the_askers_and_its_sums_come_too_late(database: Database, job: str) -> None:
    lost = taken(database, job, seconds=-1.0)
    kept = taken(database, job)
    assert [shards.take_own(database, job, OWNER) for _ in range(5)] == [0, 1, 2, 4, None]
    assert not shards.finish(database, lost, OTHER, SUMS)
    with pytest.raises(Lost):
        shards.extend(database, lost, OTHER, 60.0)
    shards.extend(database, kept, OTHER, 60.0)
    assert shards.finish(database, kept, OTHER, SUMS)
    assert not shards.finish(database, kept, OTHER, SUMS)
    found = shards.by_number(database, job, OWNER)
    assert (found[3].file, found[3].sha256) == tuple(SUMS)
    assert found[4].file is None


def test_what_is_given_back_goes_to_the_asker_and_to_no_other_helper(database: Database, job: str) -> None:
    shards.give_back(database, taken(database, job), OTHER)
    assert taken(database, job).number == 3
    assert [shards.take_own(database, job, OWNER) for _ in range(4)] == [0, 1, 2, 4]


@pytest.mark.parametrize("how", ["lapsed", "taken over", "ended"])
def test_nothing_is_done_for_an_asker_who_is_gone(database: Database, job: str, how: str) -> None:
    shards.sweep(database)
    assert len(shards.by_number(database, job, OWNER)) == 5
    values = {
        "lapsed": {"lease_until": now() - timedelta(seconds=1)},
        "taken over": {"lease_owner": OTHER},
        "ended": {"state": JobState.SUCCEEDED},
    }
    with database.write() as session:
        session.execute(update(Job).values(values[how]))
    assert shards.take(database, job, OTHER, 60.0, ()) is None
    shards.sweep(database)
    assert shards.by_number(database, job, OWNER) == {}


def test_the_end_of_a_pass_tells_which_files_go(database: Database, job: str) -> None:
    assert shards.finish(database, taken(database, job), OTHER, SUMS)
    late = taken(database, job)
    assert shards.delete_pass(database, job, OWNER) == [SUMS.file]
    assert shards.by_number(database, job, OWNER) == {}
    assert not shards.finish(database, late, OTHER, SUMS)
    shards.create(database, job, OWNER, Stored("models/1/q2", ""), 5)
    assert not shards.finish(database, late, OTHER, SUMS), "sums of one pass are not those of the next"


def test_a_job_that_could_begin_goes_before_help(database: Database, job: str) -> None:
    def wanted(*queues: str) -> bool:
        with database.read() as session:
            return queries.any_can_begin(session, queues)

    with database.write() as session:
        model = session.get_one(Job, job).model_id
        # those that other tests have left
        session.execute(update(Job).where(Job.state == JobState.QUEUED).values(state=JobState.CANCELLED))
    assert not wanted("quick", "long")
    other = enter_job(database, model_with(database), JobKind.RETRAIN)
    assert wanted("quick", "long")
    assert not wanted("quick", "long-gpu")
    with database.write() as session:  # another of the same model and kind has to wait for the first
        session.execute(update(Job).where(Job.id == other).values(model_id=model, kind=JobKind.ADAPT))
    assert not wanted("quick", "long")
