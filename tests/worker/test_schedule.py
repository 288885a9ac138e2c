"""What comes due by itself, while two schedulers look after it."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

import numpy as np
import pytest
from sqlalchemy import select

from core.models import catalog
from core.tables.jobs import Job, JobKind
from tests.worker.deployment import Deployment, problem
from tests.worker.test_failures import POISON, store

pytestmark = pytest.mark.timing

HOUR = timedelta(hours=1)
OFF = {"after_changes": None, "every": None}
X, Y = problem(200)
TICK = """
import sys
from core.database import Database
from core.jobs import messages
from core.settings import from_environment
from worker import scheduler

settings = from_environment()
scheduler.tick(settings, Database(settings), messages.sender(settings.broker))
assert not {"torch", "celery.worker"} & set(sys.modules)
"""


@pytest.fixture(scope="module")
def watched(deployment: Deployment) -> Iterator[Deployment]:
    """The deployment with a second scheduler."""
    second = deployment.add("worker.scheduler")
    log = deployment.folder / "worker.scheduler.log"
    deployment.wait_until(lambda: log.read_text().count("scheduler_started") == 2)
    yield deployment
    second.terminate()
    assert second.wait(10) == 0


@contextmanager
def trained(deployment: Deployment, policy: dict[str, Any], scale: float = 1.0, **spec: Any) -> Iterator[str]:
    """A model with a version for the first 100 examples, whose schedule ends with the test."""
    name = deployment.new_model(**spec)
    dim = deployment.get(f"/v1/models/{name}")["input"]["dim"]
    deployment.add_examples(name, X[:100, :dim] * scale, Y[:100], split="train")
    deployment.adapted(name)
    with deployment.client() as client:
        try:
            client.patch(f"/v1/models/{name}", json={"policy": policy}).raise_for_status()
            yield name
        finally:
            client.delete(f"/v1/models/{name}").raise_for_status()


@contextmanager
def schedulers_held(deployment: Deployment) -> Iterator[None]:
    """No tick comes meanwhile."""
    processes = [p for p in deployment.others if p.args[-1] == "worker.scheduler"]  # type: ignore[index]
    for process in processes:
        process.send_signal(signal.SIGSTOP)
    try:
        yield
    finally:
        for process in processes:
            process.send_signal(signal.SIGCONT)


def add(deployment: Deployment, name: str, first: int, last: int) -> None:
    deployment.add_examples(name, X[first:last], Y[first:last], first=first, split="train")


def position(deployment: Deployment, name: str) -> int:
    return int(deployment.champion(name)["position"])


def jobs(deployment: Deployment, name: str, kind: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = deployment.get(f"/v1/jobs?model={name}&kind={kind}")["items"]
    return found


def test_a_tick_does_without_torch(deployment: Deployment) -> None:
    """Importing it takes longer than a tick, and more memory than all the rest."""
    command = [sys.executable, "-c", TICK]
    ticked = subprocess.run(command, env=deployment.complete(), check=True, capture_output=True, text=True)
    assert "failed" not in ticked.stdout + ticked.stderr


def test_a_model_is_trained_by_policy_once_it_has_enough_examples(watched: Deployment) -> None:
    name = watched.new_model(policy={"adapt": {"after_changes": 50, "every": "1s"}})
    add(watched, name, 0, 60)
    watched.wait_until(lambda: len(jobs(watched, name, "adapt")) > 0, 20)
    [job] = watched.settled(name)
    assert (job["state"], job["version"], position(watched, name)) == ("succeeded", 1, 60)
    watched.wait_for_ticks()
    assert len(jobs(watched, name, "adapt")) == 1


def test_a_model_is_adapted_after_so_many_changes(watched: Deployment) -> None:
    with trained(watched, {"adapt": {**OFF, "after_changes": 10}}) as name:
        add(watched, name, 100, 109)
        watched.wait_for_ticks()
        assert position(watched, name) == 100
        add(watched, name, 109, 110)
        watched.wait_until(lambda: position(watched, name) == 110, 20)
        watched.wait_for_ticks()
        assert len(jobs(watched, name, "adapt")) == 2


def test_a_model_is_adapted_when_a_change_is_old_enough(watched: Deployment) -> None:
    with trained(watched, {"adapt": {**OFF, "every": "1h"}}) as name:
        add(watched, name, 100, 101)
        watched.let_pass(name, 0.9 * HOUR)
        watched.wait_for_ticks()
        assert position(watched, name) == 100
        watched.let_pass(name, 0.2 * HOUR)
        watched.wait_until(lambda: position(watched, name) == 101, 20)
        watched.settled(name)
        watched.let_pass(name, HOUR)
        watched.wait_for_ticks()
        assert len(jobs(watched, name, "adapt")) == 2


def test_missed_due_times_are_caught_up_once_and_nothing_is_retrained_for_nothing(watched: Deployment) -> None:
    with trained(watched, {"retrain": {"every": "1h"}}) as name:
        with schedulers_held(watched):
            add(watched, name, 100, 110)
            watched.let_pass(name, 2.1 * HOUR)
        watched.wait_until(lambda: len(jobs(watched, name, "retrain")) > 0, 20)
        watched.settled(name)
        watched.let_pass(name, HOUR)
        watched.wait_for_ticks()
        assert [job["state"] for job in jobs(watched, name, "retrain")] == ["succeeded"]
        [comparison] = watched.get(f"/v1/models/{name}/comparisons")["items"]
        assert comparison["position"] == 110


def test_each_due_time_is_met_once(watched: Deployment) -> None:
    with trained(watched, {"retrain": {"every": "1h"}}) as name:
        for i in range(3):
            add(watched, name, 100 + i, 101 + i)
            watched.let_pass(name, HOUR)
            watched.wait_until(lambda i=i: len(jobs(watched, name, "retrain")) > i, 20)
            watched.settled(name)
        with watched.database.read() as session:
            model = catalog.find(session, name, None)
            retrains = select(Job.due_at).where(Job.model_id == model.id, Job.kind == JobKind.RETRAIN)
            due = sorted(at for at in session.scalars(retrains) if at is not None)
        assert due == [model.created_at + i * HOUR for i in (1, 2, 3)]


POWERS = {"input": {"kind": "vector", "dim": 1}, "architecture": {"kind": "linear", "degree": 10}}


def test_a_failed_adaptation_is_not_tried_again_until_something_changes(watched: Deployment) -> None:
    with trained(watched, {"adapt": {**OFF, "after_changes": 1}}, scale=0.25, **POWERS) as name:
        store(watched, name, POISON, np.array([1]), 100, "train")
        watched.wait_until(lambda: len(jobs(watched, name, "adapt")) == 2, 10)
        watched.wait_until(lambda: jobs(watched, name, "adapt")[0]["state"] == "failed", 10)
        watched.wait_for_ticks()
        assert len(jobs(watched, name, "adapt")) == 2
        watched.remove(name, [100])
        watched.wait_until(lambda: position(watched, name) == 102, 10)


def test_what_runs_already_is_not_made_due_again(watched: Deployment) -> None:
    endless = {"training": {"max_epochs": 30_000, "patience": 100_000}}
    name = watched.new_model(architecture={"kind": "mlp", "hidden": [8]}, **endless)
    watched.add_examples(name, X[:100], Y[:100], split="train")
    job = watched.post(f"/v1/models/{name}/adaptations")["id"]
    watched.running(job)
    with watched.client() as client:
        policy = {"adapt": {**OFF, "after_changes": 1}}
        client.patch(f"/v1/models/{name}", json={"policy": policy}).raise_for_status()
        watched.add_examples(name, X[100:110], Y[100:110], first=100, split="train")
        watched.wait_for_ticks()
        assert len(jobs(watched, name, "adapt")) == 1
        client.patch(f"/v1/models/{name}", json={"policy": {"adapt": OFF}}).raise_for_status()
    watched.post(f"/v1/jobs/{job}/cancel")
    watched.wait_until(lambda: jobs(watched, name, "adapt")[0]["state"] == "cancelled", 10)
