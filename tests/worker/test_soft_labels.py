"""Soft labels with workers at work: the model is what scikit-learn fits to each row twice, weighted y and 1 - y."""

from __future__ import annotations

import numpy as np
import pytest
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import accuracy_score, average_precision_score, roc_auc_score

from tests.worker.deployment import Deployment, Numbers, problem

N, HELD = 300, 80


def twice(x: Numbers, y: Numbers) -> tuple[Numbers, Numbers, Numbers]:
    """Inputs, classes and weights of both classes of each row."""
    return np.concatenate([x, x]), np.repeat([1, 0], len(x)), np.concatenate([y, 1 - y])


def fitted(x: Numbers, y: Numbers, delta: float) -> Numbers:
    inputs, classes, weight = twice(x.astype(np.float64), y)
    model = LogisticRegression(C=1 / delta, tol=1e-10, max_iter=10_000).fit(inputs, classes, sample_weight=weight)
    return np.concatenate([model.coef_[0], model.intercept_])


def soft_problem(n: int) -> tuple[Numbers, Numbers]:
    x, y = problem(n, seed=3)
    noise = np.random.default_rng(3).uniform(0, 0.6, n)
    return x, np.where(np.arange(n) % 4, np.abs(y - noise), y).astype(float)


def test_soft_labels_end_within_their_bound_of_scikit_learn(deployment: Deployment) -> None:
    x, y = soft_problem(N + HELD)
    name = deployment.new_model(policy={"holdout": 0})
    deployment.add_examples(name, x[: N - 40], y[: N - 40])
    deployment.add_examples(name, x[N:], y[N:], first=N, split="holdout")
    deployment.adapted(name)
    deployment.add_examples(name, x[N - 40 : N], y[N - 40 : N], first=N - 40)
    deployment.remove(name, range(20))
    deployment.post(f"/v1/models/{name}/changes", {"regularizer": {"kind": "l2", "delta": 3.0}})
    deployment.adapted(name)
    deployment.settled(name)
    version = deployment.champion(name)
    assert version["kind"] == "adapted"
    assert deployment.datasets_agree(name)
    w = deployment.weights(name)
    assert np.linalg.norm(w - fitted(x[20:N], y[20:N], 3.0)) <= version["certificate"]["bound"] + 1e-4
    assert version["certificate"]["relative"] <= 0.01

    held = y[N:]
    mean = 1 / (1 + np.exp(-(x[N:] @ w[:-1] + w[-1])))
    loss = np.mean(-(held * np.log(mean) + (1 - held) * np.log1p(-mean)))
    likelier = held > 0.5
    metrics = {
        "loss": loss,
        "log_loss": loss,
        "brier": np.mean(held * (1 - mean) ** 2 + (1 - held) * mean**2),
        "accuracy": accuracy_score(likelier, mean > 0.5),
        "auc": roc_auc_score(likelier, mean),
        "average_precision": average_precision_score(likelier, mean),
    }
    assert {metric: version["metrics"][metric] for metric in metrics} == pytest.approx(metrics)
    assert version["gate"]["passed"] is not False
    windows = deployment.get(f"/v1/models/{name}/quality?window=job")["items"]
    assert {"log_loss", "brier", "auc"} <= windows[-1]["champion"].keys()
    share = y[N - 40 : N].mean()
    baseline = -(share * np.log(share) + (1 - share) * np.log1p(-share))
    assert windows[-1]["baseline"]["log_loss"] == pytest.approx(baseline)

    found = analysed(deployment, name, {"kind": "leave_one_out", "top": 5})
    assert {row["y"] for row in found["rows"]} <= set(y.tolist())
    inputs, classes, weight = twice(x[20:N].astype(np.float64), y[20:N])
    without = LogisticRegression(C=1 / 3, tol=1e-10, max_iter=10_000)
    first = int(found["rows"][0]["id"].removeprefix("e")) - 20
    kept = np.arange(len(inputs)) % (N - 20) != first
    without.fit(inputs[kept], classes[kept], sample_weight=weight[kept])
    assert found["rows"][0]["mean"] == pytest.approx(without.predict_proba(inputs[first][None])[0, 1], abs=1e-3)
    for change in ({"loss": "squared_hinge"}, {"target": {"kind": "classes", "values": [0, 1, 2]}}):
        with deployment.client() as client:
            body = {"kind": "preview", "change": change}
            answer = client.post(f"/v1/models/{name}/analyses", json=body)
        assert (answer.status_code, answer.json()["code"]) == (422, "soft_labels")


def test_trees_and_networks_learn_soft_labels(deployment: Deployment) -> None:
    x, y = soft_problem(N)
    for architecture in ({"kind": "trees", "trees": 5, "leaves": 4}, {"kind": "mlp", "hidden": [8]}):
        name = deployment.model(input={"kind": "vector", "dim": x.shape[1]}, architecture=architecture)
        deployment.add_examples(name, x, y)
        assert deployment.adapted(name)["state"] == "succeeded"
        version = deployment.champion(name)
        assert version["metrics"]["auc"] > 0.6


def analysed(deployment: Deployment, name: str, request: dict[str, object]) -> dict[str, list[dict[str, object]]]:
    started = deployment.post(f"/v1/models/{name}/analyses", request)
    if started.get("job"):
        deployment.ended(started["job"])
    found: dict[str, list[dict[str, object]]] = deployment.get(f"/v1/models/{name}/analyses/{started['id']}")["result"]
    return found
