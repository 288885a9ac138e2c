"""Adaptations from end to end: what is asked for over REST is what scikit-learn fits on the retained examples."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from scipy.optimize import minimize

from amend import Client
from tests.worker.deployment import DELTA, Deployment, fitted, problem
from tests.worker.sklearn_oracle import TARGETS, examples_of, fit

# What is tested here is the engine's and the worker's: the database is beside the point.
pytestmark = pytest.mark.parametrize("deployment", ["sqlite"], indirect=True)

TRAIN = {"split": "train"}
N, MORE = 240, 300
"""Examples before and after the addition."""


def test_the_first_adaptation_trains(deployment: Deployment) -> None:
    name, (x, y) = deployment.new_model(), problem(300)
    deployment.add_examples(name, x, y, **TRAIN)
    job = deployment.adapted(name)
    assert (job["state"], job["version"], job["from_position"], job["to_position"]) == ("succeeded", 1, 0, 300)
    version = deployment.get(f"/v1/models/{name}/versions/1")
    assert (version["kind"], version["state"], version["method"]) == ("trained", "champion", "retrain")
    np.testing.assert_allclose(deployment.weights(name), fitted(x, y), atol=1e-4)


def add(deployment: Deployment, name: str, x: Any, y: Any) -> dict[str, Any]:
    deployment.add_examples(name, x[N:MORE], y[N:MORE], first=N, **TRAIN)
    return {"rows": range(MORE)}


def remove(deployment: Deployment, name: str, x: Any, y: Any) -> dict[str, Any]:
    deployment.remove(name, range(30))
    return {"rows": range(30, N)}


def correct(deployment: Deployment, name: str, x: Any, y: Any) -> dict[str, Any]:
    examples = [{"id": f"e{i}", "x": x[N + i].tolist(), "y": y[N + i].item()} for i in range(30)]
    with deployment.client() as client:
        client.put(f"/v1/models/{name}/examples", json={"examples": examples}).raise_for_status()
    return {"rows": range(30, N + 30)}


def regularize(deployment: Deployment, name: str, x: Any, y: Any) -> dict[str, Any]:
    deployment.post(f"/v1/models/{name}/changes", {"regularizer": {"kind": "l2", "delta": 4.0}})
    return {"rows": range(N), "delta": 4.0}


def change_degree(deployment: Deployment, name: str, x: Any, y: Any) -> dict[str, Any]:
    before = deployment.get(f"/v1/models/{name}")["architecture"]["degree"]
    deployment.post(f"/v1/models/{name}/changes", {"architecture": {"kind": "linear", "degree": 3 - before}})
    return {"rows": range(N), "degree": 3 - before}


def everything(deployment: Deployment, name: str, x: Any, y: Any) -> dict[str, Any]:
    changed = [change(deployment, name, x, y) for change in (add, regularize, change_degree, remove)]
    return {**changed[1], **changed[2], "rows": range(30, MORE)}


@pytest.mark.parametrize(
    ("change", "degree"),
    [
        (add, 1),
        (remove, 1),
        (correct, 1),
        (regularize, 1),
        (change_degree, 1),
        (change_degree, 2),
        (everything, 1),
        (everything, 2),
    ],
)
@pytest.mark.parametrize("kind", TARGETS)
def test_every_change_of_every_kind_of_model_ends_within_its_bound_of_a_retrain(
    deployment: Deployment, kind: str, change: Callable[..., dict[str, Any]], degree: int
) -> None:
    architecture = {"kind": "linear", "degree": degree}
    name, (x, y) = deployment.new_model(target=TARGETS[kind], architecture=architecture), examples_of(kind, MORE)
    deployment.add_examples(name, x[:N], y[:N], **TRAIN)
    deployment.adapted(name)
    after = {"delta": DELTA, "degree": degree, **change(deployment, name, x, y)}
    deployment.adapted(name)
    deployment.settled(name)
    version = deployment.champion(name)
    assert (version["kind"], version["position"]) == ("adapted", deployment.get(f"/v1/models/{name}")["head"])
    rows = list(after.pop("rows"))
    distance = np.linalg.norm(deployment.weights(name) - fit(kind, x[rows], y[rows], **after))
    assert distance <= version["certificate"]["bound"] + 1e-6
    assert version["certificate"]["relative"] <= 0.01
    assert version["certificate"]["kind"] == "bound"
    assert deployment.datasets_agree(name)


def test_adds_removals_and_a_new_regularizer_become_one_version(deployment: Deployment) -> None:
    name, (x, y) = deployment.new_model(), problem(400)
    deployment.add_examples(name, x[:300], y[:300], **TRAIN)
    deployment.adapted(name)
    with deployment.worker_held():
        deployment.add_examples(name, x[300:], y[300:], first=300, **TRAIN)
        deployment.post(f"/v1/models/{name}/changes", {"regularizer": {"kind": "l2", "delta": 3.0}})
        removal = deployment.remove(name, range(50))
    job = deployment.ended(removal["job"])
    assert (job["state"], job["from_position"], job["to_position"]) == ("succeeded", 300, 451)
    version = deployment.champion(name)
    assert (version["version"], version["parent"], version["position"]) == (2, 1, 451)
    assert deployment.get(f"/v1/models/{name}")["pending"] == 0
    distance = np.linalg.norm(deployment.weights(name) - fitted(x[50:], y[50:], 3.0))
    assert distance <= version["certificate"]["bound"] + 1e-4


def test_a_model_with_few_examples_is_drawn_toward_one_with_many(deployment: Deployment) -> None:
    """With penalties of single columns, additions, removals and a certificate, as one version."""
    x, y = problem(500, seed=1)
    other = deployment.new_model()
    deployment.add_examples(other, x[:400], y[:400], **TRAIN)
    deployment.adapted(other)
    with Client(deployment.url, deployment.admin_key) as client:
        prior = [found.coefficient for found in client.coefficients(other, 1)]
        np.testing.assert_allclose(prior, deployment.weights(other))
        name = deployment.new_model(regularizer={"kind": "l2", "delta": 50.0, "toward": prior})
        deployment.add_examples(name, x[400:460], y[400:460], **TRAIN)
        deployment.adapted(name)
        first = client.version(name, 1)
        assert first.spec["regularizer"] == {"kind": "l2", "delta": 50.0, "penalize_bias": False, "toward": prior}
        distance = np.linalg.norm(deployment.weights(name) - fit_offset(x[400:460], y[400:460], [50.0] * 4, prior))
        assert distance <= first.certificate.bound + 1e-5
        changed = {"kind": "l2", "delta": 5.0, "columns": {"0": 80.0}, "toward": prior}
        with deployment.worker_held():
            deployment.add_examples(name, x[460:], y[460:], first=60, **TRAIN)
            client.change_model(name, regularizer=changed)
            removal = deployment.remove(name, range(10))
        assert deployment.ended(removal["job"])["state"] == "succeeded"
        version = client.version(name, 2)
    assert (version.kind, version.certificate.kind) == ("adapted", "bound")
    truth = fit_offset(x[410:], y[410:], [80.0, 5.0, 5.0, 5.0], prior)
    assert np.linalg.norm(deployment.weights(name) - truth) <= version.certificate.bound + 1e-5
    assert version.certificate.relative <= 0.01


def fit_offset(x: Any, y: Any, deltas: list[float], prior: list[float]) -> Any:
    """The logistic regression that is drawn to the prior, but for its bias, by SciPy."""
    phi, m = np.hstack([x.astype(float), np.ones((len(x), 1))]), np.array(prior)
    delta = np.array([*deltas, 0.0])

    def objective(v: Any) -> tuple[float, Any]:
        f = phi @ (m + v)
        gradient = phi.T @ (1 / (1 + np.exp(-f)) - y) + delta * v
        return np.logaddexp(0, f).sum() - y @ f + (delta * v * v).sum() / 2, gradient

    return m + minimize(objective, np.zeros(len(m)), jac=True, method="BFGS", options={"gtol": 1e-9}).x
