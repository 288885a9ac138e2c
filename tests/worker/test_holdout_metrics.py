"""Metrics, headline and decision threshold through REST, checked with scikit-learn on the holdout."""

from __future__ import annotations

import numpy as np
import pytest
from sklearn import metrics as sk

from tests.worker.deployment import Deployment, Numbers

RULE = np.array([2.0, -1.0, 0.5])


def rare_rows(n: int = 3000) -> tuple[Numbers, Numbers, Numbers]:
    """Inputs, targets of which few are 1, and which rows are in the holdout."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(n, 3)).astype(np.float32)
    y = (rng.random(n) < 1 / (1 + np.exp(4.5 - x @ RULE))).astype(int)
    return x, y, np.arange(n) % 3 == 0


def test_metrics_headline_and_threshold_of_a_rare_class(deployment: Deployment) -> None:
    x, y, held = rare_rows()
    policy = {"recall_at_precision": 0.5}
    name = deployment.new_model(input={"kind": "vector", "dim": 3}, policy=policy)
    rows = [
        {"id": f"e{i}", "x": x[i].tolist(), "y": int(y[i]), "split": "holdout" if held[i] else "train"}
        for i in range(len(x))
    ]
    deployment.post(f"/v1/models/{name}/examples", {"examples": rows})
    version = deployment.adapted(name)["version"]
    shown = deployment.get(f"/v1/models/{name}/versions/{version}")

    def predict() -> tuple[Numbers, Numbers]:
        outputs = deployment.post(f"/v1/models/{name}/predictions", {"inputs": x[held].tolist()})["outputs"]
        return np.array([out["mean"] for out in outputs]), np.array([out["class"] for out in outputs])

    p, chosen = predict()
    truth = y[held]
    precision, recall, _ = sk.precision_recall_curve(truth, p)
    expected = {
        "average_precision": sk.average_precision_score(truth, p),
        "baseline_average_precision": truth.mean(),
        "recall_at_precision": recall[precision >= 0.5].max(),
        "auc": sk.roc_auc_score(truth, p),
        "brier": sk.brier_score_loss(truth, p),
        "log_loss": sk.log_loss(truth, p),
        "accuracy": sk.accuracy_score(truth, chosen),
        "balanced_accuracy": sk.balanced_accuracy_score(truth, chosen),
        "f1": sk.f1_score(truth, chosen),
    }
    assert {metric: shown["metrics"][metric] for metric in expected} == pytest.approx(expected, rel=1e-6)
    assert (chosen == (p > 0.5)).all()
    assert shown["headline"] == "average_precision"

    with deployment.client() as client:
        change = {"policy": {"threshold": 0.1, "headline": "auc"}}
        client.patch(f"/v1/models/{name}", json=change).raise_for_status()
    again, chosen = predict()
    assert (again == p).all()
    assert (chosen == (p > 0.1)).all()
    later = deployment.get(f"/v1/models/{name}/versions/{version}")
    assert (later["headline"], later["metrics"]) == ("auc", shown["metrics"])
    deployment.post(
        f"/v1/models/{name}/examples", {"examples": [{"id": "n", "x": [0, 0, 0], "y": 0, "split": "train"}]}
    )
    newer = deployment.get(f"/v1/models/{name}/versions/{deployment.adapted(name)['version']}")
    p, chosen = predict()
    assert newer["metrics"]["f1"] == pytest.approx(sk.f1_score(truth, p > 0.1))
    assert newer["metrics"]["accuracy"] == pytest.approx(sk.accuracy_score(truth, chosen))
