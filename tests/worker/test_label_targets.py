"""Targets of several labels with workers at work: each label is what scikit-learn's one-versus-rest makes of it."""

from __future__ import annotations

import re
from typing import Any

import httpx
import numpy as np
import pytest
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import accuracy_score, average_precision_score, f1_score, log_loss, roc_auc_score
from sklearn.multiclass import OneVsRestClassifier
from sqlalchemy import select

from core.models import catalog
from core.tables.ledger import HAS_CONTENT, Example
from tests.worker.deployment import DIM, Deployment, Numbers
from tests.worker.erasure_helpers import erase
from tests.worker.test_texts import HASHING, hashed, send
from tests.worker.texts import reviews

VALUES = ["sports", "R&D", 3]
TARGET = {"kind": "labels", "values": VALUES}
N, HELD = 300, 120


def label_problem(n: int, seed: int = 0) -> tuple[Numbers, Numbers]:
    """Inputs, and which labels each row has (n, 3)."""
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(n, DIM)).astype(np.float32)
    f = np.stack([2 * x[:, 0], x[:, 1] - x[:, 2] - 1, x.sum(1) / 2 + 0.5], 1)
    return x, (rng.random((n, 3)) < 1 / (1 + np.exp(-f))).astype(int)


def rows_of(x: Numbers, y: Numbers, first: int = 0, values: list[Any] = VALUES, **more: Any) -> list[dict[str, Any]]:
    return [
        {
            "id": f"e{first + i}",
            "x": a.tolist(),
            "y": [value for value, has in zip(values, b, strict=True) if has],
            **more,
        }
        for i, (a, b) in enumerate(zip(x, y, strict=True))
    ]


def fitted(x: Numbers, y: Numbers, delta: float) -> Numbers:
    """(K, D + 1) scikit-learn's weights."""
    model = OneVsRestClassifier(LogisticRegression(C=1 / delta, tol=1e-10, max_iter=10_000))
    model.fit(x.astype(np.float64), y)
    return np.stack([np.append(one.coef_[0], one.intercept_) for one in model.estimators_])


def check(deployment: Deployment, name: str, truth: Numbers, values: list[Any] = VALUES) -> dict[str, Any]:
    """The champion is within its bound of the truth, label by label, too."""
    version = deployment.champion(name)
    certificate, apart = version["certificate"], deployment.weights(name).reshape(truth.shape) - truth
    assert certificate["relative"] <= 0.01
    assert np.linalg.norm(apart) <= certificate["bound"] + 1e-4
    assert certificate["labels"].keys() == {str(value) for value in values}
    for value, gap in zip(values, apart, strict=True):
        bound = certificate["labels"][str(value)]
        assert np.linalg.norm(gap) <= bound["bound"] + 1e-4
        assert bound["bound"] <= certificate["bound"]
    assert deployment.datasets_agree(name)
    return version


@pytest.mark.both_databases
def test_a_history_of_labels_ends_within_its_bounds_of_one_versus_rest(deployment: Deployment) -> None:
    x, y = label_problem(N + HELD)
    name = deployment.new_model(target=TARGET, policy={"holdout": 0, "gate": {"metric": "average_precision"}})
    path, person = f"/v1/models/{name}/examples", f"person of {name}"

    def add(some: slice, **more: Any) -> None:
        deployment.post(path, {"examples": rows_of(x[some], y[some], some.start, split="train", **more)})

    add(slice(0, 5), subject=person)
    add(slice(5, N - 40))
    deployment.post(path, {"examples": rows_of(x[N:], y[N:], N, split="holdout")})
    assert deployment.adapted(name)["state"] == "succeeded"
    check(deployment, name, fitted(x[: N - 40], y[: N - 40], 1.0))
    add(slice(N - 40, N))
    deployment.remove(name, range(20, 30))
    deployment.post(f"/v1/models/{name}/changes", {"regularizer": {"kind": "l2", "delta": 3.0}})
    deployment.adapted(name)
    deployment.settled(name)
    kept = [i for i in range(N) if not 20 <= i < 30]
    version = check(deployment, name, fitted(x[kept], y[kept], 3.0))
    assert (version["kind"], version["headline"]) == ("adapted", "average_precision")

    mean = predict(deployment, name, x[N:])
    held, chosen = y[N:], mean > 0.5
    expected = {
        "log_loss": np.mean([log_loss(held[:, k], mean[:, k]) for k in range(3)]),
        "loss": np.sum([log_loss(held[:, k], mean[:, k]) for k in range(3)]),
        "accuracy": accuracy_score(held, chosen),
        "auc": roc_auc_score(held, mean, average="macro"),
        "average_precision": average_precision_score(held, mean, average="macro"),
        "f1": f1_score(held, chosen, average="macro"),
        "brier": np.mean((mean - held) ** 2),
    }
    for k, value in enumerate(VALUES):
        expected |= {
            f"{value}/average_precision": average_precision_score(held[:, k], mean[:, k]),
            f"{value}/log_loss": log_loss(held[:, k], mean[:, k]),
            f"{value}/auc": roc_auc_score(held[:, k], mean[:, k]),
            f"{value}/f1": f1_score(held[:, k], chosen[:, k]),
        }
    assert {metric: version["metrics"][metric] for metric in expected} == pytest.approx(expected)
    gate = version["gate"]
    assert (gate["metric"], gate["rows"], gate["passed"]) == ("average_precision", HELD, True)
    window = deployment.get(f"/v1/models/{name}/quality?window=job")["items"][-1]
    assert {"log_loss", "average_precision", "auc", "accuracy"} <= window["champion"].keys()
    share = y[N - 40 : N].mean(0)
    entropy = -np.mean(share * np.log(share) + (1 - share) * np.log1p(-share))
    assert window["baseline"]["log_loss"] == pytest.approx(entropy)
    assert "predictions" in deployment.get(f"/v1/models/{name}/drift")

    job = deployment.ended(deployment.post(f"/v1/models/{name}/retrains")["id"])
    assert job["state"] == "succeeded", job
    [comparison] = deployment.get(f"/v1/models/{name}/comparisons")["items"]
    assert comparison["within_tolerance"]
    assert comparison["disagreement"] == pytest.approx(0, abs=0.02)
    with httpx.Client(base_url=deployment.url) as visitor:
        visitor.post("/sign-in", data={"key": deployment.admin_key})
        page = visitor.get(f"/models/{name}/versions/{version['version']}").text
        assert re.search(r"<td>R&amp;D</td><td>0\.\d+</td>", page)
        assert visitor.get(f"/models/{name}").status_code == 200

    receipt = erase(deployment, person)
    assert receipt["models"][0]["examples"] == 5
    kept = [i for i in kept if i >= 5]
    np.testing.assert_allclose(deployment.weights(name).reshape(3, -1), fitted(x[kept], y[kept], 3.0), atol=1e-4)


def predict(deployment: Deployment, name: str, x: Numbers, values: list[Any] = VALUES) -> Numbers:
    outputs = deployment.post(f"/v1/models/{name}/predictions", {"inputs": x.tolist()})["outputs"]
    return np.array([[output["probabilities"][str(value)] for value in values] for output in outputs])


def test_a_label_is_added_later(deployment: Deployment) -> None:
    x, y = label_problem(N + 60, seed=2)
    name = deployment.new_model(
        target={"kind": "labels", "values": VALUES[:2]}, policy={"holdout": 0.2, "certify": "always"}
    )
    path = f"/v1/models/{name}/examples"
    first = rows_of(x[:N], y[:N, :2], values=VALUES[:2])
    deployment.post(path, {"examples": first})
    deployment.adapted(name)
    deployment.post(f"/v1/models/{name}/changes", {"target": {"kind": "labels", "values": [3, *VALUES[:2]]}})
    deployment.settled(name)  # a version with the label, but without examples of it
    deployment.post(path, {"examples": rows_of(x[N:], y[N:], N)})
    deployment.adapted(name)
    deployment.settled(name)
    y[:N, 2] = 0
    order = y[:, [2, 0, 1]]
    stored = {row["id"]: row for row in deployment.get(f"{path}?limit=1000")["items"]}
    train = [i for i in range(N + 60) if stored[f"e{i}"]["split"] == "train"]
    version = check(deployment, name, fitted(x[train], order[train], 1.0), [3, *VALUES[:2]])
    assert version["kind"] == "adapted"
    assert version["gate"]["passed"] is True  # judged by the labels that the champion had examples of
    quality = deployment.get(f"/v1/models/{name}/quality?window=week")["items"]
    assert "log_loss" in quality[-1]["champion"]


def test_analyses_of_labels(deployment: Deployment) -> None:
    x, y = label_problem(200, seed=4)
    name = deployment.new_model(target=TARGET, policy={"holdout": 0})
    flipped = y[:150].copy()
    flipped[7] = 1 - flipped[7]
    path = f"/v1/models/{name}/examples"
    deployment.post(path, {"examples": rows_of(x[:100], flipped[:100], split="train", source="first")})
    deployment.post(path, {"examples": rows_of(x[100:150], flipped[100:], 100, split="train", source="second")})
    deployment.post(path, {"examples": rows_of(x[150:], y[150:], 150, split="holdout")})
    deployment.adapted(name)

    def analyse(**request: Any) -> Any:
        started = deployment.post(f"/v1/models/{name}/analyses", request)
        if started.get("job"):
            job = deployment.ended(started["job"])
            assert (job["state"], job["error"]) == ("succeeded", None)
        return deployment.get(f"/v1/models/{name}/analyses/{started['id']}")["result"]

    one_left_out = analyse(kind="leave_one_out", top=10)
    row = one_left_out["rows"][0]
    i = int(row["id"].removeprefix("e"))
    rest = np.arange(150) != i
    truth = fitted(x[:150][rest], flipped[rest], 1.0)
    mean = 1 / (1 + np.exp(-(truth @ np.append(x[i], 1))))
    assert [row["mean"][str(value)] for value in VALUES] == pytest.approx(mean.tolist(), abs=2e-3)
    assert row["y"] == [value for value, has in zip(VALUES, flipped[i], strict=True) if has]
    assert row["suspicion"] == pytest.approx(np.abs(mean - flipped[i]).max(), abs=2e-3)
    assert "average_precision" in one_left_out["metrics"]
    folds = analyse(kind="cross_validation", folds=5)
    assert 0.5 < folds["metrics"]["auc"] < 1
    tuning = analyse(kind="tuning", parameter="regularizer.delta", values=[0.1, 1, 10], folds=5)
    assert tuning["best"] == min(tuning["table"], key=lambda entry: entry["loss"])["value"]
    removed = analyse(kind="preview", remove={"ids": ["e7"]})
    assert removed["after"]["loss"] != removed["before"]["loss"]
    assert len(removed["predictions"]) > 0
    more = analyse(kind="preview", change={"target": {"kind": "labels", "values": [*VALUES, "new"]}})
    assert more["after"]["accuracy"] == pytest.approx(more["before"]["accuracy"], abs=0.05)
    influence = analyse(kind="influence", on="holdout", by="example")
    assert len(influence["rows"]) > 0
    assert analyse(kind="influence", on={"inputs": x[150:152].tolist()}, by="source")["rows"]
    assert analyse(kind="labelling", inputs=x[150:].tolist(), top=3)["rows"][0]["mean"].keys() == set(map(str, VALUES))


def test_texts_have_labels(deployment: Deployment) -> None:
    texts, good = reviews(120)
    labels = np.stack([np.array(good), np.array([len(text) % 2 for text in texts])], 1)
    sets = [[value for value, has in zip(VALUES, row, strict=False) if has] for row in labels.tolist()]
    name = deployment.new_model(
        input={"kind": "text"},
        architecture=HASHING,
        target={"kind": "labels", "values": VALUES[:2]},
        policy={"certify": "always"},
    )
    send(deployment, name, texts, sets, split="train")
    deployment.adapted(name)
    deployment.remove(name, range(10))
    deployment.adapted(name)
    deployment.settled(name)
    version = check(deployment, name, fitted(hashed(texts[10:]), labels[10:], 1.0), VALUES[:2])
    assert version["certificate"]["scope"] == "head"


def test_a_person_whose_examples_were_deleted_before_is_erased(deployment: Deployment) -> None:
    """Nothing is left to read of examples that a version learnt; this failed the erasure."""
    name = deployment.new_model(target=TARGET, policy={"holdout": 0.2})
    x, y = label_problem(200)
    person = f"{name}-person"
    deployment.post(f"/v1/models/{name}/examples", {"examples": rows_of(x[:190], y[:190])})
    deployment.post(
        f"/v1/models/{name}/examples",
        {"examples": rows_of(x[190:], y[190:], first=190, subject=person, split="train")},
    )
    deployment.adapted(name)
    deployment.ended(deployment.remove(name, range(190, 200))["job"])
    with deployment.database.read() as session:
        model = catalog.find(session, name, None)
    content = select(Example.position).where(Example.model_id == model.id, Example.position > 190, HAS_CONTENT)

    def deleted() -> bool:
        with deployment.database.read() as session:
            return session.scalar(content.limit(1)) is None

    deployment.wait_until(deleted)
    erase(deployment, person)
