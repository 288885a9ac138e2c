"""Other losses from end to end: changed to, held against scikit-learn, predicted with, erased from, brought along."""

from __future__ import annotations

import uuid
from typing import Any

import numpy as np
import pytest
from scipy.optimize import minimize
from sklearn.svm import LinearSVC

from amend import Client
from tests.worker.deployment import DIM, Deployment, Numbers, problem
from tests.worker.erasure_helpers import ask, wait_for_end

# What is tested here is the engine's and the worker's: the database is beside the point.
pytestmark = pytest.mark.parametrize("deployment", ["sqlite"], indirect=True)

RIDGE = {"kind": "l2", "delta": 2.0, "penalize_bias": True}
PERSON = "somebody beside the margin"


def fit_svc(x: Numbers, y: Numbers) -> Numbers:
    model = LinearSVC(loss="squared_hinge", dual=False, C=0.5, tol=1e-10, max_iter=100_000).fit(x.astype(float), y)
    return np.append(model.coef_[0], model.intercept_)


def assert_certified(deployment: Deployment, name: str, truth: Numbers, slack: float = 1e-5) -> dict[str, Any]:
    version = deployment.champion(name)
    assert version["certificate"]["relative"] <= 0.01
    assert np.linalg.norm(deployment.weights(name) - truth) <= version["certificate"]["bound"] + slack
    return version


def test_a_logistic_regression_becomes_a_support_vector_machine(deployment: Deployment) -> None:
    x, y = problem(600)
    name = deployment.new_model(regularizer=RIDGE, policy={"certify": "always", "holdout": 0.0})
    deployment.add_examples(name, x[:5], y[:5], split="train", subject=PERSON)
    deployment.add_examples(name, x[5:500], y[5:500], first=5, split="train")
    deployment.add_examples(name, x[500:], y[500:], first=500, split="holdout")
    deployment.adapted(name)
    deployment.remove(name, range(20, 40))
    deployment.post(f"/v1/models/{name}/changes", {"loss": "squared_hinge"})
    deployment.adapted(name)
    deployment.settled(name)
    left = [i for i in range(500) if not 20 <= i < 40]
    version = assert_certified(deployment, name, fit_svc(x[left], y[left]))
    assert (version["kind"], version["spec"]["loss"]) == ("adapted", {"kind": "squared_hinge"})
    assert "calibration" not in version["metrics"]
    f = x[500:].astype(float) @ deployment.weights(name)[:-1] + deployment.weights(name)[-1]
    assert version["metrics"]["accuracy"] == pytest.approx(np.mean((f > 0) == y[500:]))
    short = np.maximum(0, 1 - (2 * y[500:] - 1) * f)
    assert version["metrics"]["loss"] == pytest.approx(np.mean(short**2), rel=1e-4)
    made = deployment.post(f"/v1/models/{name}/predictions", {"inputs": x[500:503].tolist()})["outputs"]
    assert [output["class"] for output in made] == (f[:3] > 0).astype(int).tolist()
    np.testing.assert_allclose([output["score"] for output in made], f[:3], rtol=1e-5)
    assert not {"mean", "probabilities"} & made[0].keys()
    with deployment.client() as client:
        asked = client.post(f"/v1/models/{name}/predictions", json={"inputs": x[:1].tolist(), "uncertainty": True})
    assert (asked.status_code, asked.json()["code"]) == (422, "uncertainty_unsupported")
    tensor = {"name": "x", "datatype": "FP32", "shape": [1, DIM], "data": x[500].tolist()}
    with deployment.client() as client:
        answer = client.post(f"/v2/models/{name}/infer", json={"inputs": [tensor]}).raise_for_status().json()
    assert [output["name"] for output in answer["outputs"]] == ["score", "class"]
    # what is removed from it, and who is erased, leaves it as any other model
    deployment.remove(name, range(40, 60))
    deployment.adapted(name)
    deployment.settled(name)
    assert wait_for_end(deployment, ask(deployment, PERSON))["state"] == "completed"
    left = [i for i in range(5, 500) if not 20 <= i < 60]
    assert_certified(deployment, name, fit_svc(x[left], y[left]))
    assert deployment.datasets_agree(name)


def fit_huber(x: Numbers, y: Numbers, threshold: float, delta: float) -> Numbers:
    phi = np.column_stack([x.astype(float), np.ones(len(x))])
    held = np.append(np.full(x.shape[1], delta), 0.0)

    def value(w: Numbers) -> tuple[float, Numbers]:
        off = phi @ w - y
        near = np.clip(off, -threshold, threshold)
        return float((near * off - near**2 / 2).sum() + (held * w * w).sum() / 2), phi.T @ near + held * w

    found: Numbers = minimize(value, np.zeros(phi.shape[1]), jac=True, method="BFGS", options={"gtol": 1e-9}).x
    return found


def test_numbers_with_outliers_are_fitted_by_hubers_loss_and_back(deployment: Deployment) -> None:
    rng = np.random.default_rng(0)
    x = rng.normal(size=(400, DIM)).astype(np.float32)
    y = x @ np.linspace(1, -1, DIM) + 0.3 * rng.normal(size=400)
    y[::10] += 50
    loss = {"kind": "huber", "threshold": 0.5}
    name = deployment.new_model(
        target={"kind": "number"}, loss=loss, policy={"certify": "always", "holdout": 0.0}, regularizer={"kind": "l2"}
    )
    deployment.add_examples(name, x[:350], y[:350], split="train")
    deployment.adapted(name)
    deployment.add_examples(name, x[350:], y[350:], first=350, split="train")
    deployment.remove(name, range(15))
    deployment.adapted(name)
    deployment.settled(name)
    assert_certified(deployment, name, fit_huber(x[15:], y[15:], 0.5, 1.0))
    position = deployment.post(f"/v1/models/{name}/changes", {"loss": {"kind": "huber", "threshold": 2.0}})["position"]
    deployment.adapted(name)
    deployment.settled(name)
    assert_certified(deployment, name, fit_huber(x[15:], y[15:], 2.0, 1.0))
    deployment.post(f"/v1/models/{name}/changes", {"revert": position})
    deployment.adapted(name)
    deployment.settled(name)
    version = assert_certified(deployment, name, fit_huber(x[15:], y[15:], 0.5, 1.0))
    assert version["spec"]["loss"] == loss


def test_a_support_vector_machine_is_imported_and_adapted(deployment: Deployment) -> None:
    name, (x, y) = f"brought-{uuid.uuid4().hex[:8]}", problem(300)
    model = LinearSVC(loss="squared_hinge", dual=False, C=0.5, tol=1e-10).fit(x.astype(float), y)
    policy = {"certify": "always", "retrain": {"every": None}}
    with Client(deployment.url, deployment.admin_key) as client:
        client.wait(client.import_model(name, model, {"x": x, "y": y}, policy=policy))
        assert client.version(name, 1).method == "imported"
        assert client.model(name).loss == {"kind": "squared_hinge"}
        made = client.predict(name, x[:4].tolist()).outputs
        np.testing.assert_allclose([one.score for one in made], model.decision_function(x[:4].astype(float)), rtol=1e-4)
        client.wait(client.remove_examples(name, [f"row-{i}" for i in range(30)]).job)
    assert_certified(deployment, name, fit_svc(x[30:], y[30:]))
