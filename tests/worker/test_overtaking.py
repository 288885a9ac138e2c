"""Changes that come while a model is trained: none is lost, and none is undone by what the training brings."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

import numpy as np
import pytest

from core.clock import now
from core.tables.jobs import Job
from tests.worker.deployment import Deployment, problem
from tests.worker.sklearn_oracle import fit

# On the database where writers really meet.
pytestmark = [pytest.mark.timing, pytest.mark.parametrize("deployment", ["postgresql"], indirect=True)]

DIM, DEGREE, N = 9, 4, 5000
"""Hundreds of weights: training takes a second, so that there is a moment in which to stop it."""


def filled(deployment: Deployment, subject: str | None = None) -> str:
    """A model that is not trained yet. It will never be certified, and nothing is tolerated.

    The first forty examples may be about somebody.
    """
    x, y = problem(N, dim=DIM)
    strict = {"certify": "never", "tolerance": {"relative_bound": 1e-12, "disagreement": 0}}
    name = deployment.new_model(
        input={"kind": "vector", "dim": DIM},
        architecture={"kind": "linear", "degree": DEGREE},
        policy={**strict, "memory": {"fraction": 0.01}},
    )
    deployment.add_examples(name, x[:40] / 3, y[:40], split="train", subject=subject)
    deployment.add_examples(name, x[40:] / 3, y[40:], first=40, split="train")
    return name


@pytest.fixture
def name(deployment: Deployment) -> str:
    """A model with an adapted version that no retrain agrees with."""
    name = filled(deployment)
    deployment.adapted(name)
    deployment.ended(deployment.remove(name, range(20))["job"])
    return name


@contextmanager
def held(deployment: Deployment, name: str, kind: str) -> Iterator[dict[str, Any]]:
    """A job that stands still in the midst of its training."""
    job: dict[str, Any] = deployment.post(f"/v1/models/{name}/{kind}")
    deployment.wait_until(lambda: deployment.get(f"/v1/jobs/{job['id']}")["state"] == "running")
    time.sleep(0.2)  # it has decided by now which examples it trains on
    with deployment.database.write() as session:
        row = session.get_one(Job, job["id"])
        row.lease_expires_at = now() + timedelta(minutes=1)  # nobody is to take it over
        assert row.lease_owner is not None, "the training was too short for this test"
        process = int(row.lease_owner.split(":")[-2])
    os.kill(process, signal.SIGSTOP)
    try:
        yield job
    finally:
        os.kill(process, signal.SIGCONT)


def test_examples_removed_during_a_retrain_stay_removed(deployment: Deployment, name: str) -> None:
    with held(deployment, name, "retrains") as retrain:
        deployment.ended(deployment.remove(name, range(20, 40))["job"])
        assert deployment.champion(name)["position"] == N + 40
    job = deployment.ended(retrain["id"])
    assert (job["state"], job["to_position"]) == ("succeeded", N + 20), job
    deployment.settled(name)
    version = deployment.champion(name)
    assert (version["kind"], version["parent"], version["position"]) == ("adapted", job["version"], N + 40)
    promoted = [p["version"] for p in deployment.get(f"/v1/models/{name}/promotions")["items"]]
    positions = [deployment.version(name, number)["position"] for number in reversed(promoted)]
    assert positions == sorted(positions)
    assert deployment.datasets_agree(name)
    x, y = problem(N, dim=DIM)
    truth = fit("binary", x[40:] / 3, y[40:], 1.0, DEGREE)
    assert np.linalg.norm(deployment.weights(name) - truth) <= 0.01 * np.linalg.norm(truth)


def test_a_rollback_while_a_retrain_runs_is_not_undone(deployment: Deployment) -> None:
    name, (x, y) = filled(deployment), problem(60, seed=9, dim=DIM)
    deployment.adapted(name)
    deployment.add_examples(name, x / 3, y, first=N, split="train")
    deployment.adapted(name)
    with held(deployment, name, "retrains") as retrain:
        deployment.post(f"/v1/models/{name}/versions/1/promote")
    assert deployment.ended(retrain["id"])["state"] == "succeeded"
    deployment.settled(name)
    assert deployment.get(f"/v1/models/{name}")["champion"] == 1


def test_examples_removed_during_the_first_training_are_forgotten_afterwards(deployment: Deployment) -> None:
    name = filled(deployment)
    with held(deployment, name, "adaptations") as training:
        following = deployment.remove(name, range(20))["job"]
        assert deployment.get(f"/v1/jobs/{following}")["state"] == "queued"
    assert deployment.ended(training["id"])["to_position"] == N
    job = deployment.ended(following)
    assert (job["state"], job["from_position"], job["to_position"]) == ("succeeded", N, N + 20)
    assert (deployment.champion(name)["version"], deployment.champion(name)["position"]) == (2, N + 20)
    assert deployment.datasets_agree(name)
