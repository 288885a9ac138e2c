"""A preview says what a change would do: the metrics, the gate and the bound of the version that the change gives."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.worker.deployment import Deployment
from tests.worker.test_analyses import analyse

COLUMNS = [
    {"name": "a", "type": "number"},
    {"name": "b", "type": "number"},
    {"name": "city", "type": "category", "values": ["rome", "oslo"]},
]


def make_rows(first: int, count: int, seed: int = 0) -> list[dict[str, Any]]:
    """Examples of a noisy rule, five of each subject, a hundred of each source."""
    draw = np.random.default_rng(seed)
    made = []
    for i in range(first, first + count):
        a, b, city = draw.normal(), draw.normal(), int(draw.random() < 0.5)
        y = int(a - b + city / 2 + draw.normal() > 0)
        x = {"a": a, "b": b, "city": ["rome", "oslo"][city]}
        made.append({"id": f"e{i}", "subject": f"s{i // 5}", "source": f"load{i // 100}", "x": x, "y": y})
    return made


CHANGES: dict[str, dict[str, Any]] = {
    "removal by id": {"remove": {"ids": [f"e{i}" for i in range(7)]}},
    "removal by subject": {"remove": {"subjects": ["s3", "s4"]}},
    "removal by source": {"remove": {"source": "load5"}},
    "erasure": {"remove": {"subjects": ["s7"]}, "erasure": True},
    "addition": {"add": [{name: row[name] for name in ("id", "x", "y")} for row in make_rows(600, 40, 1)]},
    "addition about known people": {
        "add": [
            {**{name: row[name] for name in ("id", "x", "y")}, "subject": f"s{10 + i % 9}"}
            for i, row in enumerate(make_rows(700, 40, 2))
        ]
    },
    "regularizer": {"change": {"regularizer": {"kind": "l2", "delta": 20.0}}},
    "architecture": {"change": {"architecture": {"kind": "linear", "degree": 2}}},
    "dropped column": {"change": {"drop_columns": ["b"]}},
    "added column and rows": {
        "change": {"add_columns": [{"name": "c", "type": "number", "default": 1.0}]},
        "add": [{"id": f"n{i}", "x": {"a": i % 7, "city": "oslo", "c": i}, "y": i % 2} for i in range(40)],
    },
    "loss": {"change": {"loss": {"kind": "squared_hinge"}}},
}


def make_change(deployment: Deployment, name: str, body: dict[str, Any]) -> dict[str, Any]:
    """Make the change that a preview is about; the version that it gives."""
    if body.get("erasure"):
        erasure = deployment.post("/v1/erasures", {"subject": body["remove"]["subjects"][0]})["id"]
        deployment.wait_until(lambda: deployment.get(f"/v1/erasures/{erasure}")["state"] == "completed", 60)
    elif "remove" in body:
        deployment.post(f"/v1/models/{name}/removals", body["remove"])
    if "add" in body:
        deployment.post(f"/v1/models/{name}/hold")  # one job for both
    if "change" in body:
        deployment.post(f"/v1/models/{name}/changes", body["change"])
    if "add" in body:
        deployment.post(f"/v1/models/{name}/examples", {"examples": body["add"]})
        deployment.post(f"/v1/models/{name}/resume")
        deployment.adapted(name)
    deployment.settled(name)
    return deployment.version(name, deployment.get(f"/v1/models/{name}/versions")["items"][0]["version"])


def numbers(document: Any, place: str = "") -> dict[str, Any]:
    """All values of nested objects and lists, by their places."""
    if isinstance(document, dict):
        parts = [numbers(value, f"{place}.{name}") for name, value in document.items()]
    elif isinstance(document, list):
        parts = [numbers(value, f"{place}.{i}") for i, value in enumerate(document)]
    else:
        return {place: document}
    return {name: value for part in parts for name, value in part.items()}


def check(deployment: Deployment, name: str, kind: str, body: dict[str, Any]) -> None:
    """Preview a change, make it, and compare."""
    found = analyse(deployment, name, kind="preview", **body)["result"]
    newest = deployment.get(f"/v1/models/{name}/versions")["items"][0]["version"]
    version = make_change(deployment, name, body)
    assert version["version"] > newest, kind
    assert found["method"] == version["method"], kind
    metrics = {name: value for name, value in found["after"].items() if name in version["metrics"]}
    assert {"loss", "accuracy", "rows"} <= metrics.keys()
    assert metrics == pytest.approx({name: version["metrics"][name] for name in metrics}, abs=1e-9), kind
    if body.get("erasure"):  # its figures would reveal something about the person
        assert version["gate"]["difference"] is None
        return
    assert numbers(found["gate"]) == pytest.approx(numbers(version["gate"]), abs=1e-8), kind


def test_previews_give_the_metrics_and_the_gate_of_the_versions(deployment: Deployment) -> None:
    policy = {"holdout": {"fraction": 0.3, "by": "example"}, "segments": ["city"], "gate": {"worse_by": 10}}
    name = deployment.new_model(input={"kind": "table", "columns": COLUMNS}, policy=policy)
    deployment.post(f"/v1/models/{name}/examples", {"examples": make_rows(0, 600)})
    deployment.adapted(name)
    for kind, body in CHANGES.items():
        check(deployment, name, kind, body)


def test_previews_retrain_where_a_job_would(deployment: Deployment) -> None:
    """An adaptation that needs no bound is rejected if it is worse on the holdout; splits of trees are learnt anew."""
    policy = {"holdout": {"fraction": 0.3, "by": "example"}, "certify": "never", "gate": {"worse_by": 10}}
    name = deployment.new_model(input={"kind": "table", "columns": COLUMNS}, policy=policy)
    deployment.post(f"/v1/models/{name}/examples", {"examples": make_rows(0, 300)})
    deployment.adapted(name)
    penalty = {"kind": "l2", "delta": 5.0}
    trees = {"kind": "trees", "trees": 4, "leaves": 4}
    changes: list[tuple[str, dict[str, Any]]] = [
        ("retrain", {"loss": {"kind": "squared_hinge"}}),
        ("kprior", {"loss": {"kind": "log"}}),
        ("retrain", {"architecture": trees, "regularizer": penalty}),
        ("retrain", {"architecture": {"kind": "linear"}, "regularizer": penalty}),
    ]
    for method, change in changes:
        check(deployment, name, str(change), {"change": change})
        assert deployment.champion(name)["method"] == method


def test_a_preview_of_another_class_gives_the_metrics_of_the_version(deployment: Deployment) -> None:
    classes = {"kind": "classes", "values": ["no", "yes"]}
    # the gate draws older rows, because the sample of the holdout has few
    policy = {"holdout": 0.3, "gate": {"worse_by": 10}, "evaluation": {"rows": 40}}
    name = deployment.new_model(input={"kind": "table", "columns": COLUMNS}, target=classes, policy=policy)
    rows = [{**row, "y": classes["values"][row["y"]]} for row in make_rows(0, 300)]
    deployment.post(f"/v1/models/{name}/examples", {"examples": rows})
    deployment.adapted(name)
    check(deployment, name, "class", {"change": {"target": {"kind": "classes", "values": ["no", "yes", "maybe"]}}})
    # the examples of another class come with it, while this one has none
    four = ["no", "yes", "maybe", "later"]
    rows = [{"id": f"n{i}", "x": {"a": 3.0 + i / 50, "b": 0.0, "city": "oslo"}, "y": "later"} for i in range(60)]
    added = [{**row, "split": "train"} for row in rows]
    check(deployment, name, "class and rows", {"change": {"target": {**classes, "values": four}}, "add": added})
