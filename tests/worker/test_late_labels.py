"""Predict today, label later: late labels are evaluated with the predictions that were given at the time."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
from sklearn import metrics as sk

from tests.worker.deployment import Deployment, Numbers
from tests.worker.erasure_helpers import wait_for_end
from tests.worker.test_gate import World
from tests.worker.test_test_then_train import quality, send


def record(deployment: Deployment, name: str, x: Numbers, prefix: str, **more: Any) -> Numbers:
    """Predict and record; returns the predictions."""
    body = {"inputs": x.tolist(), "ids": [f"{prefix}{i}" for i in range(len(x))], "record": True, **more}
    outputs = deployment.post(f"/v1/models/{name}/predictions", body)["outputs"]
    return np.array([output["mean"] for output in outputs])


def label(deployment: Deployment, name: str, y: Numbers, prefix: str) -> dict[str, Any]:
    body = {"labels": [{"id": f"{prefix}{i}", "y": int(value)} for i, value in enumerate(y)]}
    result: dict[str, Any] = deployment.post(f"/v1/models/{name}/labels", body)
    return result


def expect(window: dict[str, Any], y: Numbers, p: Numbers) -> None:
    expected = {
        "auc": sk.roc_auc_score(y, p),
        "log_loss": sk.log_loss(y, p),
        "loss": sk.log_loss(y, p),
        "accuracy": sk.accuracy_score(y, p > 0.5),
    }
    for metric, value in expected.items():
        assert window[metric] == pytest.approx(value, rel=1e-6), metric


@pytest.mark.both_databases
def test_metrics_of_late_labels_are_those_of_the_recorded_predictions(deployment: Deployment) -> None:
    world, name = World(), deployment.new_model()
    send(deployment, name, world, 600, "a")
    deployment.adapted(name)
    x, y = world.rows(200)
    p = record(deployment, name, x, "p")
    send(deployment, name, world, 300, "b", tilt=2.0)
    deployment.adapted(name)  # the champion has changed when the labels arrive
    assert label(deployment, name, y, "p") == {"accepted": 200, "unknown": [], "duplicates": 0}
    deployment.adapted(name)
    window = quality(deployment, name)[-1]
    assert (window["rows"], window["champion"]["version"], window["challenger"]) == (200, 1, None)
    expect(window["champion"], y, p)
    assert deployment.get(f"/v1/models/{name}")["counts"]["unlabelled"] == 0


def test_a_challenger_predicts_the_same_examples(deployment: Deployment) -> None:
    world, name = World(), deployment.new_model()
    send(deployment, name, world, 600, "a")
    deployment.adapted(name)
    send(deployment, name, world, 300, "b")
    deployment.adapted(name)
    with deployment.client() as client:
        unknown = client.patch(f"/v1/models/{name}", json={"policy": {"challenger": 3}})
    assert (unknown.status_code, unknown.json()["code"]) == (422, "policy_invalid")
    assert "has no version 3" in unknown.json()["detail"]
    deployment.request("PATCH", f"/v1/models/{name}", json={"policy": {"challenger": 1}})
    x, y = world.rows(200)
    p = record(deployment, name, x, "p")
    second = deployment.post(f"/v1/models/{name}/predictions", {"inputs": x.tolist(), "version": 1})["outputs"]
    label(deployment, name, y, "p")
    deployment.adapted(name)
    window = quality(deployment, name)[-1]
    assert (window["champion"]["version"], window["challenger"]["version"]) == (2, 1)
    expect(window["champion"], y, p)
    expect(window["challenger"], y, np.array([output["mean"] for output in second]))


@pytest.mark.both_databases
def test_an_erasure_covers_examples_without_labels(deployment: Deployment) -> None:
    world, name = World(), deployment.new_model()
    send(deployment, name, world, 600, "a")
    deployment.adapted(name)
    x, _ = world.rows(4)
    record(deployment, name, x, "p", subjects=["anna", "anna", "bert", None])
    held = deployment.post("/v1/erasures", {"subject": "anna", "hold": True})
    waiting = f"/v1/models/{name}/examples?label=pending"
    assert [row["id"] for row in deployment.get(waiting)["items"]] == ["p2", "p3"]
    assert label(deployment, name, np.ones(1), "p")["unknown"] == ["p0"]
    deployment.post(f"/v1/erasures/{held['id']}/refuse", {"reason": "not the same person"})
    assert len(deployment.get(waiting)["items"]) == 4
    found = deployment.post("/v1/subjects/lookup", {"subject": "anna"})["models"]
    assert {"model": name, "examples": 2} in found
    erasure = deployment.post("/v1/erasures", {"subject": "anna"})
    done = wait_for_end(deployment, erasure["id"])
    assert (done["state"], done["models"][0]["examples"]) == ("completed", 2), json.dumps(done)
    assert [row["id"] for row in deployment.get(waiting)["items"]] == ["p2", "p3"]
    receipt = deployment.get(f"/v1/erasures/{erasure['id']}/receipt")
    assert '"deleted"' in json.dumps(receipt)
    assert deployment.post("/v1/subjects/lookup", {"subject": "anna"})["models"] == []
