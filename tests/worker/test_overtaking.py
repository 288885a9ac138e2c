"""Changes that come while a retrain runs: they are adapted at once, and the retrain does not undo them."""

from __future__ import annotations

import time
from typing import Any

import numpy as np
import pytest

from tests.worker.house import House, problem
from tests.worker.truth import fit

DIM, DEGREE, N = 10, 4, 3000
"""A thousand weights: training takes seconds, adapting a fraction of one."""


@pytest.fixture
def retraining(house: House) -> tuple[str, dict[str, Any]]:
    """A model whose retrain, after an adaptation that it will not agree with, has just begun to train."""
    x, y = problem(N, dim=DIM)
    strict = {"certify": "never", "tolerance": {"relative_bound": 1e-12, "disagreement": 0}}
    name = house.new_model(
        input={"kind": "vector", "dim": DIM},
        architecture={"kind": "linear", "degree": DEGREE},
        policy={**strict, "memory": {"fraction": 0.01}},
    )
    house.add_examples(name, x / 3, y, split="train")
    house.adapted(name)
    house.ended(house.remove(name, range(20))["job"])
    job = house.post(f"/v1/models/{name}/retrains")
    house.wait_until(lambda: house.get(f"/v1/jobs/{job['id']}")["progress"] >= 0.1)
    return name, job


def test_what_is_removed_while_a_retrain_runs_stays_removed(
    house: House, retraining: tuple[str, dict[str, Any]]
) -> None:
    name, retrain = retraining
    house.ended(house.remove(name, range(20, 40))["job"])
    assert house.get(f"/v1/jobs/{retrain['id']}")["state"] == "running", "the retrain was too short for this test"
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


def test_a_rollback_while_a_retrain_runs_is_not_undone(house: House, retraining: tuple[str, dict[str, Any]]) -> None:
    name, retrain = retraining
    house.post(f"/v1/models/{name}/versions/1/promote")
    assert house.get(f"/v1/jobs/{retrain['id']}")["state"] == "running", "the retrain was too short for this test"
    assert house.ended(retrain["id"])["state"] == "succeeded"
    house.settled(name)
    time.sleep(0.5)
    assert house.get(f"/v1/models/{name}")["champion"] == 1
