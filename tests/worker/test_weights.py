"""Weighted examples and classes, with workers at work: the model is what scikit-learn fits with the same weights."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import accuracy_score, log_loss

from tests.worker.deployment import DELTA, Deployment, Numbers, problem

CLASSES = {"0": 1.0, "1": 3.0}
N = 300


def fitted(x: Numbers, y: Numbers, weight: Numbers) -> Numbers:
    model = LogisticRegression(
        C=1 / DELTA, tol=1e-10, max_iter=10_000, class_weight={int(c): v for c, v in CLASSES.items()}
    )
    model.fit(x.astype(np.float64), y, sample_weight=weight)
    return np.concatenate([model.coef_[0], model.intercept_])


def test_a_history_of_weights_ends_within_its_bound_of_scikit_learn(deployment: Deployment) -> None:
    x, y = problem(N + 80, seed=5)
    weight = np.random.default_rng(5).uniform(0.1, 6.0, N + 80)
    name = deployment.new_model(class_weight=CLASSES, policy={"memory": {"fraction": 0.1}, "holdout": 0})

    def add(which: range, **more: Any) -> None:
        rows = [{"id": f"e{i}", "x": x[i].tolist(), "y": int(y[i]), "weight": float(weight[i]), **more} for i in which]
        deployment.post(f"/v1/models/{name}/examples", {"examples": rows})

    add(range(N))
    add(range(N + 40, N + 80), split="holdout")
    deployment.adapted(name)
    add(range(N, N + 40))
    deployment.remove(name, range(20))
    weight[20:30] = 9.0
    rows = [{"id": f"e{i}", "x": x[i].tolist(), "y": int(y[i]), "weight": 9.0} for i in range(20, 30)]
    with deployment.client() as client:
        answer = client.put(f"/v1/models/{name}/examples", json={"examples": rows}).raise_for_status().json()
    assert (answer["replaced"], answer["unchanged"]) == (10, 0)
    deployment.adapted(name)
    deployment.settled(name)
    version, kept = deployment.champion(name), slice(20, N + 40)
    assert version["kind"] == "adapted"
    assert deployment.datasets_agree(name)
    distance = np.linalg.norm(deployment.weights(name) - fitted(x[kept], y[kept], weight[kept]))
    assert distance <= version["certificate"]["bound"] + 1e-4  # float32 inputs, and the other solver's tolerance
    assert version["certificate"]["relative"] <= 0.01
    held, w = slice(N + 40, N + 80), deployment.weights(name)
    mean = 1 / (1 + np.exp(-(x[held] @ w[:-1] + w[-1])))
    figures = {
        "loss": log_loss(y[held], mean, sample_weight=weight[held]),
        "accuracy": accuracy_score(y[held], mean > 0.5, sample_weight=weight[held]),
    }
    assert {name: version["metrics"][name] for name in figures} == pytest.approx(figures)
