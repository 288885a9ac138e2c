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

from core.database import now
from core.jobs.tables import Job
from tests.worker.house import House, problem
from tests.worker.truth import fit

DIM, DEGREE, N = 9, 4, 2500
"""Hundreds of weights: training takes a second, so that there is a moment in which to stop it."""


def filled(house: House, subject: str | None = None) -> str:
    """A model that is not trained yet. It will never be certified, and nothing is tolerated.

    The first forty examples may be about somebody.
    """
    x, y = problem(N, dim=DIM)
    strict = {"certify": "never", "tolerance": {"relative_bound": 1e-12, "disagreement": 0}}
    name = house.new_model(
        input={"kind": "vector", "dim": DIM},
        architecture={"kind": "linear", "degree": DEGREE},
        policy={**strict, "memory": {"fraction": 0.01}},
    )
    house.add_examples(name, x[:40] / 3, y[:40], split="train", subject=subject)
    house.add_examples(name, x[40:] / 3, y[40:], first=40, split="train")
    return name


@pytest.fixture
def name(house: House) -> str:
    """A model with an adapted version that no retrain agrees with."""
    name = filled(house)
    house.adapted(name)
    house.ended(house.remove(name, range(20))["job"])
    return name


@contextmanager
def held(house: House, name: str, kind: str) -> Iterator[dict[str, Any]]:
    """A job that stands still in the midst of its training."""
    job: dict[str, Any] = house.post(f"/v1/models/{name}/{kind}")
    house.wait_until(lambda: house.get(f"/v1/jobs/{job['id']}")["state"] == "running")
    time.sleep(0.2)  # it has looked which examples to train on
    with house.database.write() as session:
        row = session.get_one(Job, job["id"])
        row.lease_until = now() + timedelta(minutes=1)  # nobody is to take it over
        assert row.lease_owner is not None, "the training was too short for this test"
        process = int(row.lease_owner.split(":")[-2])
    os.kill(process, signal.SIGSTOP)
    try:
        yield job
    finally:
        os.kill(process, signal.SIGCONT)


def test_what_is_removed_while_a_retrain_runs_stays_removed(house: House, name: str) -> None:
    with held(house, name, "retrains") as retrain:
        house.ended(house.remove(name, range(20, 40))["job"])
        assert house.champion(name)["position"] == N + 40
    job = house.ended(retrain["id"])
    assert (job["state"], job["to_position"]) == ("succeeded", N + 20), job
    house.settled(name)
    version = house.champion(name)
    assert (version["kind"], version["parent"], version["position"]) == ("adapted", job["version"], N + 40)
    promoted = [p["version"] for p in house.get(f"/v1/models/{name}/promotions")["items"]]
    positions = [house.version(name, number)["position"] for number in reversed(promoted)]
    assert positions == sorted(positions)
    assert house.datasets_agree(name)
    x, y = problem(N, dim=DIM)
    truth = fit("binary", x[40:] / 3, y[40:], 1.0, DEGREE)
    assert np.linalg.norm(house.weights(name) - truth) <= 0.01 * np.linalg.norm(truth)


def test_a_rollback_while_a_retrain_runs_is_not_undone(house: House) -> None:
    name, (x, y) = filled(house), problem(60, seed=9, dim=DIM)
    house.adapted(name)
    house.add_examples(name, x / 3, y, first=N, split="train")
    house.adapted(name)
    with held(house, name, "retrains") as retrain:
        house.post(f"/v1/models/{name}/versions/1/promote")
    assert house.ended(retrain["id"])["state"] == "succeeded"
    house.settled(name)
    assert house.get(f"/v1/models/{name}")["champion"] == 1


def test_what_is_removed_while_the_first_training_runs_is_forgotten_after_it(house: House) -> None:
    name = filled(house)
    with held(house, name, "adaptations") as training:
        following = house.remove(name, range(20))["job"]
        assert house.get(f"/v1/jobs/{following}")["state"] == "queued"
    assert house.ended(training["id"])["to_position"] == N
    job = house.ended(following)
    assert (job["state"], job["from_position"], job["to_position"]) == ("succeeded", N, N + 20)
    assert (house.champion(name)["version"], house.champion(name)["position"]) == (2, N + 20)
    assert house.datasets_agree(name)
