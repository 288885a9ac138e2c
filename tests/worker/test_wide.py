"""Models with more weights than a Hessian has room for, from end to end; and certificates that need no pass."""

from __future__ import annotations

import numpy as np
import pytest

from tests.worker.deployment import Deployment, problem
from tests.worker.erasure_helpers import ask, wait_for_end
from tests.worker.sklearn_oracle import fit

# What is tested here is the engine's and the worker's: the database is beside the point.
pytestmark = pytest.mark.parametrize("deployment", ["sqlite"], indirect=True)

DIM, CLASSES = 400, 3
DELTA = 20.0
PERSON = "somebody in a wide model"


def wide_problem(n: int) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(0)
    x = (rng.normal(size=(n, DIM)) / np.sqrt(np.arange(1, DIM + 1))).astype(np.float32)
    y = (x[:, :CLASSES] * 2 + rng.gumbel(size=(n, CLASSES))).argmax(1)
    return x, y


def test_a_wide_model_is_trained_adapted_and_erased_within_its_bound(deployment: Deployment) -> None:
    x, y = wide_problem(500)
    spec = {
        "input": {"kind": "vector", "dim": DIM},
        "target": {"kind": "classes", "values": list(range(CLASSES))},
        "regularizer": {"kind": "l2", "delta": DELTA},
    }
    name = deployment.new_model(**spec)
    deployment.add_examples(name, x[:10], y[:10], split="train", subject=PERSON)
    deployment.add_examples(name, x[10:], y[10:], first=10, split="train")
    deployment.adapted(name)
    deployment.remove(name, range(30, 50))
    deployment.adapted(name)
    deployment.settled(name)
    left = [i for i in range(500) if not 30 <= i < 50]
    for rows in (left, left[10:]):
        version = deployment.champion(name)
        certificate = version["certificate"]
        # who is erased has left no trace in a model of this size only if it is trained anew
        kind = "adapted" if rows is left else "trained"
        assert (version["kind"], certificate["kind"]) == (kind, "bound")
        assert certificate["relative"] <= 0.01
        assert version["cost"]["data_passes"] > 0
        weights = deployment.weights(name).reshape(CLASSES, -1)
        weights[:, -1] -= weights[:, -1].mean()
        truth = fit("classes", x[rows], y[rows], DELTA).reshape(CLASSES, -1)
        assert np.linalg.norm(weights - truth) <= certificate["bound"] + 1e-4
        if rows is left:
            assert wait_for_end(deployment, ask(deployment, PERSON))["state"] == "completed"


def test_a_removal_is_certified_without_a_pass_and_an_erasure_makes_some(deployment: Deployment) -> None:
    x, y = problem(3000)
    name = deployment.new_model()
    deployment.add_examples(name, x[:5], y[:5], split="train", subject="one of many")
    deployment.add_examples(name, x[5:], y[5:], first=5, split="train")
    deployment.adapted(name)
    deployment.remove(name, range(100, 103))
    deployment.adapted(name)
    deployment.settled(name)
    version = deployment.champion(name)
    assert version["certificate"]["passes"] == version["cost"]["data_passes"] == 0
    assert version["certificate"]["relative"] <= 0.01
    assert wait_for_end(deployment, ask(deployment, "one of many"))["state"] == "completed"
    assert deployment.champion(name)["certificate"]["passes"] >= 1


def test_policy_can_ask_for_a_pass_each_time(deployment: Deployment) -> None:
    x, y = problem(500)
    name = deployment.new_model(policy={"certify": "pass", "adapt": {"after_changes": None, "every": None}})
    deployment.add_examples(name, x, y, split="train")
    deployment.adapted(name)
    deployment.remove(name, range(2))
    deployment.adapted(name)
    deployment.settled(name)
    assert deployment.champion(name)["certificate"]["passes"] >= 1
