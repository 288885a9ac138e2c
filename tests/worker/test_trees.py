"""Tree ensembles from end to end: trained, adapted with a certificate, compared, and retrained for an erasure."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from sklearn.linear_model import LogisticRegression

from tests.worker.deployment import Deployment
from tests.worker.erasure_helpers import ask, wait_for_end

# What is tested here is the engine's and the worker's: the database is beside the point.
pytestmark = pytest.mark.parametrize("deployment", ["sqlite"], indirect=True)

PERSON, DELTA = "somebody in a leaf", 20.0
SPEC: dict[str, Any] = {
    "input": {
        "kind": "table",
        "columns": [
            {"name": "age", "type": "number"},
            {"name": "plan", "type": "category", "values": ["free", "basic", "pro", "team"]},
        ],
    },
    "target": {"kind": "binary"},
    "architecture": {"kind": "trees", "trees": 8, "leaves": 6},
    "regularizer": {"kind": "l2", "delta": DELTA},
}


def customers(n: int, first: int = 0, seed: int = 0) -> list[dict[str, Any]]:
    r = np.random.default_rng(seed)
    age, plan = r.normal(40, 12, n).round(2), r.choice(["free", "basic", "pro", "team"], n)
    left = r.random(n) < 1 / (1 + np.exp(-np.sin(age / 6) * 2 - (plan == "pro")))
    return [
        {
            "id": f"e{first + i}",
            "x": {"age": None if i % 9 == 0 else age[i], "plan": None if i % 11 == 0 else str(plan[i])},
            "y": int(left[i]),
            "split": "holdout" if i % 5 == 4 else "train",
            **({"subject": PERSON} if first + i < 10 else {}),
        }
        for i in range(n)
    ]


def test_trees_are_adapted_certified_compared_and_retrained_for_an_erasure(deployment: Deployment) -> None:
    name = deployment.new_model(**SPEC)
    rows = customers(1500)
    deployment.post(f"/v1/models/{name}/examples", {"examples": rows})
    deployment.adapted(name)
    first = deployment.version(name, 1)
    assert first["certificate"]["scope"] == "head"
    splits = deployment.state(name).predictor.encoder

    new = customers(60, first=2000, seed=1)
    deployment.post(f"/v1/models/{name}/examples", {"examples": new})
    deployment.post(f"/v1/models/{name}/removals", {"ids": [f"e{i}" for i in range(30, 50)]})
    deployment.adapted(name)
    deployment.settled(name)
    version, state = deployment.champion(name), deployment.state(name)
    certificate = version["certificate"]
    assert version["kind"] == "adapted"
    assert certificate["scope"] == "head"
    assert certificate["relative"] <= 0.01
    assert all(torch.equal(a, b) for a, b in zip(splits.splits(), state.predictor.encoder.splits(), strict=True))
    kept = [row for row in rows + new if row["split"] == "train" and not 30 <= int(row["id"][1:]) < 50]
    truth = refit(state, kept)
    assert np.linalg.norm(state.w.numpy() - truth) <= certificate["bound"] + 1e-5
    check_predictions(deployment, name, state)
    for kind in ("leave_one_out", "cross_validation", "tuning"):  # by examples that boosting has seen
        asked = deployment.post(f"/v1/models/{name}/analyses", {"kind": kind})
        assert deployment.ended(asked["job"])["error"]["code"] == "features_fitted"

    job = deployment.ended(deployment.post(f"/v1/models/{name}/retrains", {})["id"])
    assert job["state"] == "succeeded", job
    (comparison,) = deployment.get(f"/v1/models/{name}/comparisons")["items"]
    assert comparison["weight_distance"] is None
    assert comparison["loss"]["adapted"] > 0
    loss = comparison["loss"]
    allowed = max(2 * loss["difference_se"], 0.01 * loss["retrained"])
    assert comparison["within_tolerance"] is (loss["adapted"] - loss["retrained"] <= allowed)

    assert wait_for_end(deployment, ask(deployment, PERSON))["state"] == "completed"
    erased = deployment.champion(name)
    assert erased["kind"] == "trained"
    after = deployment.state(name)
    kept = [row for row in kept if "subject" not in row]
    assert np.abs(predict(after, kept) - predict_refit(after, kept)).max() < 1e-3


def encode(rows: list[dict[str, Any]]) -> torch.Tensor:
    plans = SPEC["input"]["columns"][1]["values"]
    x = [[row["x"]["age"], None if row["x"]["plan"] is None else plans.index(row["x"]["plan"])] for row in rows]
    return torch.from_numpy(np.array(x, dtype=float).astype(np.float32))


def fit(state: Any, rows: list[dict[str, Any]]) -> tuple[LogisticRegression, np.ndarray]:
    phi = state.predictor.features(encode(rows))[:, :-1].numpy()
    return LogisticRegression(C=1 / DELTA, tol=1e-12, max_iter=5000).fit(phi, [row["y"] for row in rows]), phi


def refit(state: Any, rows: list[dict[str, Any]]) -> np.ndarray:
    model, _ = fit(state, rows)
    return np.concatenate([model.coef_[0], model.intercept_])


def predict_refit(state: Any, rows: list[dict[str, Any]]) -> np.ndarray:
    model, phi = fit(state, rows)
    return model.predict_proba(phi)[:, 1]


def predict(state: Any, rows: list[dict[str, Any]]) -> np.ndarray:
    return torch.sigmoid(state.predictor.outputs(state.w, encode(rows)))[:, 0].numpy()


def check_predictions(deployment: Deployment, name: str, state: Any) -> None:
    """The service predicts what the state does; an unseen category counts as missing."""
    inputs = [{"age": 33.0, "plan": "pro"}, {"age": None, "plan": "unheard of"}, {"age": 60.5, "plan": None}]
    outputs = deployment.post(f"/v1/models/{name}/predictions", {"inputs": inputs})["outputs"]
    same = [{"x": {**given, "plan": given["plan"] if given["plan"] == "pro" else None}} for given in inputs]
    assert [output["mean"] for output in outputs] == pytest.approx(predict(state, same), abs=1e-9)
    assessed = deployment.post(f"/v1/models/{name}/predictions", {"inputs": inputs, "uncertainty": True})["outputs"]
    assert all(0 < output["std"] < 0.5 for output in assessed)
