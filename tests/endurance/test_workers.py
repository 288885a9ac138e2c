"""Workers that are killed, stopped and cut off: whatever job they had is done, once."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from datetime import datetime

import pytest
from redis import Redis
from sqlalchemy import select

from core.tables.jobs import Job
from core.tables.models import Model
from core.tables.versions import Version
from tests.endurance.fleet import Fleet, Process, children, gone, kill
from tests.worker.deployment import problem

pytestmark = pytest.mark.timing

LONG, SHORT = 800, 100
"""Epochs: a second or two, and some tenths of one."""


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    """On PostgreSQL and Redis, with two schedulers: they must not be in each other's way."""
    fleet = Fleet(tmp_path_factory.mktemp("fleet"), "postgresql")
    try:
        fleet.start()
        for _ in range(2):
            fleet.add("worker.scheduler")
        yield fleet
    finally:
        fleet.stop()


def done_once(fleet: Fleet, job_id: str, *attempts: int) -> None:
    """The job succeeded, in so many attempts, with one version and no file too many."""
    job = fleet.ended(job_id)
    assert (job["state"], job["version"]) == ("succeeded", 1), job
    assert job["attempts"] in attempts
    model_id = fleet.job(job_id).model_id
    with fleet.database.read() as session:
        assert len(session.scalars(select(Version).where(Version.model_id == model_id)).all()) == 1
    assert fleet.unreferenced(model_id) == set()


def busy(fleet: Fleet, workers: list[Process]) -> list[str]:
    """Jobs that keep all workers busy for a while."""
    jobs = [fleet.trains(fleet.network(LONG)) for _ in workers]
    for job in jobs:
        fleet.runner(job)
    return jobs


def test_without_a_broker_a_removal_is_answered_at_once_and_done_later(fleet: Fleet) -> None:
    [worker] = fleet.workers_up(1)
    name = fleet.new_model()
    fleet.ended(fleet.trains(name))
    fleet.kill_broker()
    early = fleet.add("worker")  # it is started before the broker, and waits for it
    try:
        removal = fleet.remove(name, [1])
        fleet.wait_until(lambda: bool(children(early.pid)))
        fleet.wait_for_ticks(2)
        assert fleet.job(removal["job"]).state == "queued"
    finally:
        fleet.start_broker()
    assert fleet.ended(removal["job"])["state"] == "succeeded"
    # a worker may outlive its broker and take no jobs any more (celery#8030, #10205)
    fleet.wait_until(lambda: fleet.alive(early))
    jobs = [fleet.trains(fleet.network(4 * LONG)) for _ in (worker, early)]
    assert takers_of(fleet, jobs) == {*children(worker.pid), *children(early.pid)}


def takers_of(fleet: Fleet, jobs: list[str]) -> set[int]:
    """The processes that take jobs. One job may end before the next is looked at, so all are looked at each time."""
    taken: dict[str, int] = {}

    def all_taken() -> bool:
        for job in jobs:
            if owner := fleet.job(job).lease_owner:
                taken[job] = int(owner.split(":")[1])
        return len(taken) == len(jobs)

    fleet.wait_until(all_taken)
    return set(taken.values())


def test_workers_outlive_a_broker_that_is_lost_in_the_middle_of_their_jobs(fleet: Fleet) -> None:
    workers = fleet.workers_up(2)
    processes = [children(worker.pid) for worker in workers]
    running, waiting = busy(fleet, workers), fleet.trains(fleet.new_model())
    fleet.kill_broker()
    fleet.start_broker()
    for job in (*running, waiting):
        done_once(fleet, job, 1)
    assert [children(worker.pid) for worker in workers] == processes


def test_jobs_that_the_broker_forgets_are_run_all_the_same(fleet: Fleet) -> None:
    assert fleet.redis is not None
    models = [fleet.new_model() for _ in range(3)]
    for name in models:
        fleet.add_examples(name, *problem(200), split="train")
    running = busy(fleet, fleet.workers_up(2))
    waiting = [fleet.post(f"/v1/models/{name}/adaptations")["id"] for name in models]
    with Redis.from_url(fleet.redis.url) as client:
        fleet.wait_until(lambda: client.llen("long") >= len(waiting))
        client.flushall()
    for job in (*running, *waiting):
        done_once(fleet, job, 1)


def test_jobs_outlive_a_restart_of_the_database(fleet: Fleet) -> None:
    running, waiting = busy(fleet, fleet.workers_up(2)), fleet.trains(fleet.new_model())
    fleet.restart_database()
    for job in (*running, waiting):
        done_once(fleet, job, 1, 2)  # a lease may have ended meanwhile


def test_no_job_waits_while_a_worker_is_idle(fleet: Fleet) -> None:
    workers = fleet.workers_up(2)
    ids = [fleet.trains(fleet.network(SHORT)) for _ in range(10)]
    for job in ids:
        fleet.ended(job)
    # a second: the tick of the scheduler, which has jobs sent again that nobody took
    assert longest_idle(list(map(fleet.job, ids)), len(workers)) < 2


def longest_idle(jobs: list[Job], workers: int) -> float:
    """The longest time in seconds in which a job waited and a worker had none."""
    events: list[tuple[datetime, int, int]] = []
    for job in jobs:
        assert job.started_at is not None
        assert job.finished_at is not None
        events += [(job.created_at, 1, 0), (job.started_at, -1, 1), (job.finished_at, 0, -1)]
    waiting = running = 0
    longest, since = 0.0, None
    for at, more_waiting, more_running in sorted(events):
        if since is not None:
            longest = max(longest, (at - since).total_seconds())
        waiting, running = waiting + more_waiting, running + more_running
        since = (since or at) if waiting > 0 and running < workers else None
    return longest


def test_a_job_that_wakes_up_after_it_was_taken_over_does_no_damage(fleet: Fleet) -> None:
    fleet.workers_up(2)
    name = fleet.network(LONG)
    job = fleet.trains(name)
    zombie = fleet.runner(job)
    os.kill(zombie, signal.SIGSTOP)
    try:
        done_once(fleet, job, 2)
        before = fleet.get(f"/v1/models/{name}")
    finally:
        os.kill(zombie, signal.SIGCONT)
    # it is over it once it does something else
    fleet.wait_until(lambda: fleet.runner(fleet.trains(fleet.network(LONG))) == zombie)
    assert fleet.get(f"/v1/models/{name}") == before
    done_once(fleet, job, 2)


def test_a_file_whose_version_was_never_recorded_is_deleted(fleet: Fleet) -> None:
    """A worker dies right after it has stored the weights: they may hold what somebody wants to be forgotten."""
    fleet.workers_up(1)
    name = fleet.network(LONG)
    job = fleet.trains(name)
    child, model_id = fleet.runner(job), fleet.job(job).model_id
    with fleet.database.write() as session:
        session.scalar(select(Model).where(Model.id == model_id).with_for_update())
        fleet.wait_until(lambda: bool(fleet.unreferenced(model_id)))
        os.kill(child, signal.SIGKILL)
    assert fleet.ended(job)["attempts"] == 2
    fleet.wait_until(lambda: not fleet.unreferenced(model_id), 10)


def test_a_job_of_a_killed_pool_process_is_done_by_the_next(fleet: Fleet) -> None:
    [worker, *_] = fleet.workers_up(1)
    job = fleet.trains(fleet.network(LONG))
    os.kill(fleet.runner(job), signal.SIGKILL)
    done_once(fleet, job, 2)
    assert worker.poll() is None


def test_a_job_of_a_killed_worker_is_done_by_another(fleet: Fleet) -> None:
    workers = fleet.workers_up(2)
    job = fleet.trains(fleet.network(LONG))
    child = fleet.runner(job)
    [victim] = [worker for worker in workers if child in children(worker.pid)]
    victim.kill()
    victim.wait(10)
    fleet.wait_until(lambda: gone(child), 10)
    done_once(fleet, job, 2)


def test_stopping_workers_return_a_long_job_or_finish_a_short_one(fleet: Fleet) -> None:
    hasty, *others = fleet.workers_up(1)
    for worker in others:
        kill(worker)
    job = fleet.trains(fleet.network(20 * LONG))
    first = fleet.runner(job)
    patient = [fleet.add("worker", AMEND_SHUTDOWN_TIMEOUT="180") for _ in range(2)]
    hasty.terminate()
    assert hasty.wait(60) == 0
    assert gone(first)

    second = fleet.runner(job)
    [hurried] = [worker for worker in patient if second in children(worker.pid)]
    for process in (second, hurried.pid):  # all of them at once, as systemd does
        os.kill(process, signal.SIGTERM)
    assert hurried.wait(60) == 0
    assert gone(second)

    third = fleet.runner(job)
    [last] = [worker for worker in patient if third in children(worker.pid)]
    last.terminate()
    done_once(fleet, job, 1)
    assert last.wait(180) == 0
    assert gone(third)


def test_a_worker_with_two_processes_survives_the_loss_of_the_broker_during_a_job(fleet: Fleet) -> None:
    """It has been idle for a while, runs a job and listens for more."""
    for worker in fleet.workers:
        if worker.poll() is None:
            kill(worker)
    roomy = fleet.add("worker", AMEND_WORKER_PROCESSES="2")
    done_once(fleet, fleet.trains(fleet.new_model()), 1)
    fleet.wait_for_ticks(8)
    job = fleet.trains(fleet.network(LONG))
    fleet.runner(job)
    fleet.wait_for_ticks(3)
    log = fleet.folder / "worker.log"
    before = log.read_text().count("Cannot connect to redis")
    fleet.kill_broker()
    try:
        fleet.wait_until(lambda: log.read_text().count("Cannot connect to redis") > before)
    finally:
        fleet.start_broker()
    done_once(fleet, job, 1)
    done_once(fleet, fleet.trains(fleet.new_model()), 1)
    assert roomy.poll() is None
    kill(roomy)
