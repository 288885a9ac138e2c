"""Analyses answer questions about a model, as refits by scikit-learn would, and change nothing."""

from __future__ import annotations

import json
import os
import signal
from contextlib import suppress
from datetime import timedelta
from typing import Any

import httpx
import matplotlib as mpl
import numpy as np
import pytest
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import log_loss
from typer.testing import CliRunner

from amend import Client, cli
from tests.endurance.fleet import children
from tests.worker.deployment import DELTA, Deployment, Numbers, problem

mpl.use("agg")


def analyse(deployment: Deployment, name: str, **body: Any) -> dict[str, Any]:
    """The finished analysis, computed at once or by a job."""
    started = deployment.post(f"/v1/models/{name}/analyses", body)
    if "result" in started:
        assert started["job"] is None
        return dict(started)
    job = deployment.ended(started["job"])
    assert (job["kind"], job["state"]) == ("analyse", "succeeded"), job["error"]
    found: dict[str, Any] = deployment.get(f"/v1/models/{name}/analyses/{started['id']}")
    assert found["job"] == started["job"]
    return found


def refit(x: Numbers, y: Numbers, delta: float = DELTA) -> LogisticRegression:
    return LogisticRegression(C=1 / delta, tol=1e-10, max_iter=10_000).fit(x.astype(np.float64), y)


def split_of(deployment: Deployment, name: str) -> dict[str, str]:
    items = deployment.get(f"/v1/models/{name}/examples?limit=1000")["items"]
    return {item["id"]: item["split"] for item in items}


@pytest.fixture(scope="module")
def analysed(deployment: Deployment) -> tuple[str, Numbers, Numbers]:
    """A model of 600 examples from two sources; of every third example of the source `bad` the label is wrong."""
    name = deployment.new_model(policy={"holdout": 0.2})
    x, y = problem(600)
    wrong = np.arange(500, 600, 3)
    y = y.copy()
    y[wrong] = 1 - y[wrong]
    rows = [
        {"id": f"e{i}", "x": x[i].tolist(), "y": int(y[i]), "subject": f"s{i // 5}", "source": source_of(i)}
        for i in range(600)
    ]
    deployment.post(f"/v1/models/{name}/examples", {"examples": rows})
    deployment.adapted(name)
    return name, x, y


def source_of(i: int) -> str:
    return "bad" if i >= 500 else f"good{i // 250}"


def training(deployment: Deployment, analysed: tuple[str, Numbers, Numbers]) -> tuple[Numbers, Numbers, Numbers]:
    """Numbers, inputs and labels of the training examples."""
    name, x, y = analysed
    split = split_of(deployment, name)
    kept = np.array([i for i in range(len(x)) if split.get(f"e{i}") == "train"])
    return kept, x[kept], y[kept]


def test_preview_of_a_removal_is_the_version_that_it_would_give(deployment: Deployment) -> None:
    name = deployment.new_model(policy={"holdout": 0.3})
    x, y = problem(500, seed=3)
    deployment.add_examples(name, x, y)
    deployment.adapted(name)
    head, ids = deployment.get(f"/v1/models/{name}")["head"], [f"e{i}" for i in range(5)]
    found = analyse(deployment, name, kind="preview", remove={"ids": [*ids, "zz"]})
    assert (found["job"], found["position"], found["version"]) == (None, head, 1)  # no pass was needed
    result = found["result"]
    assert (result["removed"], result["unknown"], result["method"], result["passes"]) == (5, ["zz"], "kprior", 0)
    assert deployment.get(f"/v1/models/{name}")["head"] == head
    deployment.remove(name, range(5))
    deployment.settled(name)
    champion = deployment.champion(name)
    for metric in ("loss", "accuracy", "auc", "brier"):
        assert result["after"][metric] == pytest.approx(champion["metrics"][metric], abs=1e-9)
    assert result["bound"] == pytest.approx(champion["certificate"]["bound"], rel=1e-6)
    assert result["difference"]["loss"] == pytest.approx(result["after"]["loss"] - result["before"]["loss"], abs=1e-9)
    gate = champion["gate"]
    assert (result["gate"]["passed"], result["gate"]["action"]) == (gate["passed"], gate["action"])
    assert result["gate"]["difference"] == pytest.approx(gate["difference"], abs=1e-9)
    assert len(result["predictions"]) == 20


def test_preview_of_additions_and_of_a_penalty_is_the_version_that_they_would_give(deployment: Deployment) -> None:
    name = deployment.new_model(policy={"holdout": 0.3})
    x, y = problem(500, seed=4)
    deployment.add_examples(name, x[:480], y[:480])
    deployment.adapted(name)
    new = [{"id": f"e{i}", "x": x[i].tolist(), "y": int(y[i])} for i in range(480, 500)]
    change = {"regularizer": {"kind": "l2", "delta": 1.5}}
    result = analyse(deployment, name, kind="preview", add=new, change=change)["result"]
    assert result["added"] == 20
    deployment.post(f"/v1/models/{name}/changes", change)
    deployment.post(f"/v1/models/{name}/examples", {"examples": new})
    deployment.adapted(name)
    deployment.settled(name)
    metrics = deployment.champion(name)["metrics"]
    assert result["after"]["loss"] == pytest.approx(metrics["loss"], rel=2e-3)


def test_preview_of_a_large_removal_and_of_an_architecture_takes_a_job(
    deployment: Deployment, analysed: tuple[str, Numbers, Numbers]
) -> None:
    name, _, _ = analysed
    versions = len(deployment.get(f"/v1/models/{name}/versions")["items"])
    started = deployment.post(
        f"/v1/models/{name}/analyses", {"kind": "preview", "change": {"architecture": {"kind": "linear", "degree": 2}}}
    )
    found = deployment.post(f"/v1/models/{name}/analyses", {"kind": "preview", "remove": {"source": "bad"}})
    assert deployment.ended(started["job"])["state"] == "succeeded"
    result = deployment.get(f"/v1/models/{name}/analyses/{started['id']}")["result"]
    assert result["passes"] > 0
    if "job" in found and found["job"]:
        assert found["job"] != started["job"]  # two analyses are never merged
        assert deployment.ended(found["job"])["state"] == "succeeded"
        found = deployment.get(f"/v1/models/{name}/analyses/{found['id']}")
    kept, x, y = training(deployment, analysed)
    good = kept < 500
    exact = refit(x[good], y[good])
    split = split_of(deployment, name)
    held = np.array([i for i in range(500) if split[f"e{i}"] == "holdout"])
    loss = log_loss(analysed[2][held], exact.predict_proba(analysed[1][held].astype(np.float64))[:, 1])
    assert found["result"]["after"]["loss"] == pytest.approx(loss, rel=0.01)
    assert found["result"]["removed"] == 100
    assert len(deployment.get(f"/v1/models/{name}/versions")["items"]) == versions


def test_leave_one_out_finds_wrong_labels(deployment: Deployment, analysed: tuple[str, Numbers, Numbers]) -> None:
    found = analyse(deployment, analysed[0], kind="leave_one_out", top=40)
    result, (kept, x, y) = found["result"], training(deployment, analysed)
    losses = []
    for i in range(0, len(kept), 25):
        others = np.arange(len(kept)) != i
        p = refit(x[others], y[others]).predict_proba(x[i : i + 1].astype(np.float64))[0, 1]
        losses.append(p)
    assert found["cost"]["data_passes"] <= 2
    assert result["metrics"]["loss"] > result["in_sample"]["loss"]
    assert result["error"] < 0.05
    listed = [int(row["id"][1:]) for row in result["rows"]]
    assert len(listed) == 40
    wrong = [i for i in listed if i >= 500 and (i - 500) % 3 == 0]
    assert len(wrong) > 5  # of 40, where chance would give two
    first = result["rows"][0]
    i = int(np.flatnonzero(kept == int(first["id"][1:]))[0])
    others = np.arange(len(kept)) != i
    p = refit(x[others], y[others]).predict_proba(x[i : i + 1].astype(np.float64))[0, 1]
    assert first["mean"] == pytest.approx(p, abs=1e-3)
    assert first["suspicion"] == pytest.approx(abs(y[i] - p), abs=1e-3)
    assert first["y"] == y[i]


def test_suspicious_labels_of_a_ridge_classifier_are_found(deployment: Deployment) -> None:
    """Its means are no probabilities: cleanlab, which needs some, made the job fail."""
    name = deployment.new_model(target={"kind": "binary"}, loss={"kind": "squared"}, policy={"holdout": 0})
    x, y = problem(200, seed=6)
    x[0], y[0] = 4 * np.sign(direction_of_class_1(x, y)), 0
    deployment.add_examples(name, x, y)
    deployment.adapted(name)
    rows = analyse(deployment, name, kind="leave_one_out", top=200)["result"]["rows"]
    assert max(row["mean"] for row in rows) > 1
    assert all(0 <= row["suspicion"] <= 1 and row["issue"] is None for row in rows)
    assert rows[0]["id"] == "e0"


def direction_of_class_1(x: Numbers, y: Numbers) -> Numbers:
    """The direction in which class 1 lies."""
    return np.asarray(x[y == 1].mean(0) - x[y == 0].mean(0))


def test_losses_of_weighted_examples_are_weighted(deployment: Deployment) -> None:
    name = deployment.new_model(policy={"holdout": 0})
    x, y = problem(120, seed=7)
    weight = np.where(np.arange(120) % 2, 4.0, 0.5)
    rows = [
        {"id": f"e{i}", "x": x[i].tolist(), "y": int(y[i]), "weight": float(weight[i]), "source": f"s{i % 3}"}
        for i in range(120)
    ]
    deployment.post(f"/v1/models/{name}/examples", {"examples": rows})
    deployment.adapted(name)
    found = analyse(deployment, name, kind="leave_one_out", by="source")["result"]["rows"]
    for row in found:
        ours = np.arange(120) % 3 == int(row["source"][1:])
        other = LogisticRegression(C=1 / DELTA, tol=1e-10, max_iter=10_000)
        other.fit(x[~ours].astype(np.float64), y[~ours], sample_weight=weight[~ours])
        expected = log_loss(y[ours], other.predict_proba(x[ours].astype(np.float64)), sample_weight=weight[ours])
        assert row["loss"] == pytest.approx(expected, abs=1e-5)
    trained = LogisticRegression(C=1 / DELTA, tol=1e-10, max_iter=10_000)
    trained.fit(x.astype(np.float64), y, sample_weight=weight)
    in_sample = log_loss(y, trained.predict_proba(x.astype(np.float64)), sample_weight=weight)
    alone = analyse(deployment, name, kind="leave_one_out", top=120)["result"]
    assert alone["in_sample"]["loss"] == pytest.approx(in_sample, abs=1e-5)
    losses = {int(row["id"][1:]): row["loss"] for row in alone["rows"]}
    expected = np.average([losses[i] for i in range(120)], weights=weight)
    assert alone["metrics"]["loss"] == pytest.approx(expected)
    tuned = analyse(deployment, name, kind="tuning", values=[DELTA, 100.0], folds=4)["result"]["table"]
    crossed = analyse(deployment, name, kind="cross_validation", folds=4)["result"]
    assert tuned[0]["loss"] == pytest.approx(crossed["metrics"]["loss"], rel=1e-3)
    assert abs(crossed["metrics"]["loss"] - alone["metrics"]["loss"]) < 0.1 * alone["metrics"]["loss"]


def test_cross_validation_and_tuning_are_those_of_refits(
    deployment: Deployment, analysed: tuple[str, Numbers, Numbers]
) -> None:
    name, (_, x, y) = analysed[0], training(deployment, analysed)
    found = analyse(deployment, name, kind="cross_validation", folds=5)["result"]
    assert sum(fold["rows"] for fold in found["folds"]) == len(y)
    assert len(found["folds"]) == 5
    exact = np.mean(
        [
            log_loss(
                y[k::5],
                refit(np.delete(x, np.s_[k::5], 0), np.delete(y, np.s_[k::5])).predict_proba(
                    x[k::5].astype(np.float64)
                )[:, 1],
            )
            for k in range(5)
        ]
    )
    assert found["metrics"]["loss"] == pytest.approx(exact, rel=0.02)  # on other folds
    values = [0.01, 1.0, 100.0, 10_000.0]
    tuned = analyse(deployment, name, kind="tuning", values=values, folds=5)["result"]
    assert [entry["value"] for entry in tuned["table"]] == values
    assert tuned["table"][1]["loss"] == pytest.approx(found["metrics"]["loss"], rel=1e-3)
    assert tuned["table"][3]["loss"] > tuned["table"][1]["loss"]
    assert tuned["best"] == min(tuned["table"], key=lambda entry: entry["loss"])["value"]
    assert tuned["suggested"] >= tuned["best"]
    assert tuned["change"]["regularizer"]["delta"] == tuned["suggested"]
    people = analyse(deployment, name, kind="cross_validation", folds=3, by="subject")["result"]
    assert sum(fold["rows"] for fold in people["folds"]) == len(y)


def test_influence_names_the_bad_source(deployment: Deployment, analysed: tuple[str, Numbers, Numbers]) -> None:
    name = analysed[0]
    sources = analyse(deployment, name, kind="influence", by="source")["result"]["rows"]
    assert {row["source"] for row in sources} == {"good0", "good1", "bad"}
    effect = {row["source"]: row for row in sources}
    kept, x, y = training(deployment, analysed)
    split = split_of(deployment, name)
    held = np.array([i for i in range(600) if split[f"e{i}"] == "holdout"])
    hx, hy = analysed[1][held].astype(np.float64), analysed[2][held]
    before = log_loss(hy, refit(x, y).predict_proba(hx)[:, 1])
    for source, row in effect.items():
        others = np.array([source_of(i) != source for i in kept])
        after = log_loss(hy, refit(x[others], y[others]).predict_proba(hx)[:, 1])
        assert row["effect"] == pytest.approx(after - before, abs=2e-5)
        assert row["effect_se"] > 0
    people = analyse(deployment, name, kind="influence", by="subject", top=3)["result"]
    assert len(people["rows"]) == 3
    assert all(row["ids"] for row in people["rows"])
    one = analysed[1][0].tolist()
    rows = analyse(deployment, name, kind="influence", by="example", on={"inputs": [one]}, top=2)["result"]["rows"]
    assert len(rows) == 2
    assert len(rows[0]["effects"]) == 1


def test_labelling_chooses_from_a_pool_and_from_examples_without_labels(deployment: Deployment) -> None:
    name = deployment.new_model()
    x, y = problem(200, seed=5)
    deployment.add_examples(name, x, y)
    deployment.adapted(name)
    pool = [[0.0] * 4, [2.0, 0.0, 0.0, 4.0], [2.0, 0.0, 0.0, 4.0], [0.0, 8.0, 0.0, 0.0]]
    found = analyse(deployment, name, kind="labelling", inputs=pool, top=2)
    assert found["job"] is None
    assert len({row["index"] for row in found["result"]["rows"]} & {1, 2}) < 2  # the label of one is enough
    assert 3 in {row["index"] for row in found["result"]["rows"]}  # unlike all examples
    assert found["result"]["rows"][0]["gain"] >= found["result"]["rows"][1]["gain"]
    assert "inputs" not in found["request"]
    deployment.post(
        f"/v1/models/{name}/examples",
        {"examples": [{"id": f"p{i}", "x": one, "y": None, "split": "train"} for i, one in enumerate(pool)]},
    )
    rows = analyse(deployment, name, kind="labelling", top=3)["result"]["rows"]
    assert {row["id"] for row in rows} <= {"p0", "p1", "p2", "p3"}


def test_networks_are_previewed_and_estimated(deployment: Deployment) -> None:
    name = deployment.new_model(
        architecture={"kind": "mlp", "hidden": [8]}, training={"max_epochs": 5}, policy={"holdout": 0.3}
    )
    x, y = problem(300, seed=6)
    deployment.add_examples(name, x, y)
    deployment.adapted(name)
    removed = analyse(deployment, name, kind="preview", remove={"ids": [f"e{i}" for i in range(20)]})["result"]
    assert removed["bound"] is None
    assert np.isfinite(removed["after"]["loss"])
    estimated = analyse(deployment, name, kind="leave_one_out", top=5)["result"]
    assert estimated["estimate"] is True
    assert len(estimated["rows"]) == 5


def test_pending_changes_are_part_of_what_is_analysed(deployment: Deployment) -> None:
    name = deployment.new_model(policy={"holdout": 0.3})
    x, y = problem(300, seed=7)
    deployment.add_examples(name, x, y)
    deployment.adapted(name)
    deployment.post(f"/v1/models/{name}/hold")
    deployment.remove(name, range(10))
    found = analyse(deployment, name, kind="leave_one_out", top=300)
    assert found["position"] == deployment.get(f"/v1/models/{name}")["head"]
    assert not {f"e{i}" for i in range(10)}.intersection(row["id"] for row in found["result"]["rows"])


def test_an_erasure_deletes_the_analyses_of_the_model(deployment: Deployment) -> None:
    name = deployment.new_model(policy={"holdout": 0.3})
    x, y = problem(200, seed=8)
    deployment.add_examples(name, x[:-2], y[:-2])
    deployment.add_examples(name, x[-2:], y[-2:], first=198, subject="analysed-person")
    deployment.adapted(name)
    analyse(deployment, name, kind="leave_one_out")
    analyse(deployment, name, kind="preview", remove={"subjects": ["analysed-person"]})
    erasure = deployment.post("/v1/erasures", {"subject": "analysed-person"})
    deployment.wait_until(lambda: deployment.get(f"/v1/erasures/{erasure['id']}")["state"] == "completed", 60)
    assert deployment.get(f"/v1/models/{name}/analyses")["items"] == []
    [part] = deployment.get(f"/v1/erasures/{erasure['id']}/receipt")["models"]
    assert (part["deleted"]["analyses"], part["checked"]["analyses"]) == (2, 0)


@pytest.mark.timing
def test_a_killed_worker_does_not_matter(deployment: Deployment, analysed: tuple[str, Numbers, Numbers]) -> None:
    name = analysed[0]
    folds = (20, 30, 40, 50)
    started = [
        deployment.post(f"/v1/models/{name}/analyses", {"kind": "cross_validation", "folds": count}) for count in folds
    ]
    assert len({one["job"] for one in started}) == len(folds)  # two analyses are never merged
    deployment.wait_until(
        lambda: any(deployment.get(f"/v1/jobs/{one['job']}")["state"] == "running" for one in started)
    )
    for worker in deployment.workers:
        for process in children(worker.pid):
            with suppress(ProcessLookupError):
                os.kill(process, signal.SIGKILL)
    jobs = [deployment.ended(one["job"]) for one in started]
    assert [job["state"] for job in jobs] == ["succeeded"] * len(folds)
    assert max(job["attempts"] for job in jobs) > 1
    for one, count in zip(started, folds, strict=True):
        found = deployment.get(f"/v1/models/{name}/analyses/{one['id']}")
        assert len(found["result"]["folds"]) == count
        assert found["position"] == deployment.get(f"/v1/models/{name}")["head"]


def test_an_analysis_reads_one_position_whatever_is_changed_meanwhile(deployment: Deployment) -> None:
    name = deployment.new_model(policy={"holdout": 0.3})
    x, y = problem(400, seed=11)
    deployment.add_examples(name, x[:300], y[:300])
    deployment.adapted(name)
    head = deployment.get(f"/v1/models/{name}")["head"]
    started = deployment.post(f"/v1/models/{name}/analyses", {"kind": "cross_validation", "folds": 10})
    for i in range(300, 400, 10):
        deployment.add_examples(name, x[i : i + 10], y[i : i + 10], first=i)
    assert deployment.ended(started["job"])["state"] == "succeeded"
    found = deployment.get(f"/v1/models/{name}/analyses/{started['id']}")
    assert head <= found["position"] <= head + 100
    split = split_of(deployment, name)
    there = [id for id, part in split.items() if part == "train" and int(id[1:]) < found["position"]]
    assert found["result"]["metrics"]["rows"] == len(there)


def test_each_source_and_person_is_left_out_exactly(
    deployment: Deployment, analysed: tuple[str, Numbers, Numbers]
) -> None:
    name, (kept, x, y) = analysed[0], training(deployment, analysed)
    result = analyse(deployment, name, kind="leave_one_out", by="source")["result"]
    assert {row["source"] for row in result["rows"]} == {"good0", "good1", "bad"}
    groups = np.array([source_of(i) for i in kept])
    exact = {}
    for source in np.unique(groups):
        mine = groups == source
        exact[source] = log_loss(y[mine], refit(x[~mine], y[~mine]).predict_proba(x[mine].astype(np.float64))[:, 1])
    assert {row["source"]: row["loss"] for row in result["rows"]} == pytest.approx(exact, abs=1e-5)
    people = analyse(deployment, name, kind="leave_one_out", by="subject", top=2)["result"]
    assert people["groups"] == len({i // 5 for i in kept.tolist()})
    assert len(people["rows"]) == 2
    assert people["metrics"]["rows"] == len(kept)


def test_degree_length_scale_and_class_weights_are_tuned(deployment: Deployment) -> None:
    generator = np.random.default_rng(1)
    x = generator.normal(size=(240, 2)).astype(np.float32)
    y = ((x**2).sum(1) + 0.3 * generator.normal(size=240) > 1.4).astype(int)  # a circle
    plain = deployment.new_model(input={"kind": "vector", "dim": 2})
    kernel = deployment.new_model(
        input={"kind": "vector", "dim": 2}, architecture={"kind": "kernel", "features": 64, "lengthscale": 1.0}
    )
    for name in (plain, kernel):
        deployment.add_examples(name, x, y)
        deployment.adapted(name)
    degree = analyse(deployment, plain, kind="tuning", parameter="architecture.degree", values=[1, 2], folds=4)
    assert (degree["result"]["best"], degree["result"]["suggested"]) == (2, 2)
    assert degree["result"]["change"]["architecture"]["degree"] == 2
    scale = analyse(
        deployment, kernel, kind="tuning", parameter="architecture.lengthscale", values=[0.01, 1.0], folds=4
    )["result"]
    assert scale["best"] == 1.0
    weights = analyse(
        deployment, plain, kind="tuning", parameter="class_weight.1", values=[1.0, 50.0], folds=4, metric="accuracy"
    )["result"]
    assert weights["best"] == 1.0
    assert weights["change"] is None
    # the suggestion is a body of a change, and so of a preview
    found = analyse(deployment, plain, kind="preview", change=degree["result"]["change"])["result"]
    assert found["after"]["loss"] < found["before"]["loss"]


@pytest.mark.parametrize("applies", [True, False])
def test_scheduled_tuning_acts_only_as_far_as_the_policy_allows(deployment: Deployment, applies: bool) -> None:
    policy = {"holdout": 0.3, "tune": {"every": "1h", "apply": applies}}
    name = deployment.new_model(policy=policy, regularizer={"kind": "l2", "delta": 500.0})
    x, y = problem(400, seed=12)
    deployment.add_examples(name, x, y)
    deployment.adapted(name)
    deployment.settled(name)
    head = deployment.get(f"/v1/models/{name}")["head"]
    deployment.let_pass(name, timedelta(hours=1))
    listed: list[dict[str, Any]] = []

    def tuned() -> bool:
        listed[:] = deployment.get(f"/v1/models/{name}/analyses?kind=tuning")["items"]
        return bool(listed) and listed[0]["position"] is not None

    deployment.wait_until(tuned)
    result = deployment.get(f"/v1/models/{name}/analyses/{listed[0]['id']}")["result"]
    assert result["suggested"] < 500
    assert result["gate"]["passed"] is True
    deployment.settled(name)
    model = deployment.get(f"/v1/models/{name}")
    if applies:
        assert (result["applied"], model["head"]) == (head + 1, head + 1)
        assert model["regularizer"]["delta"] == result["suggested"]
        assert deployment.champion(name)["position"] == head + 1
    else:
        assert (result["applied"], model["head"]) == (None, head)
        deployment.wait_for_ticks()
        assert len(deployment.get(f"/v1/models/{name}/analyses?kind=tuning")["items"]) == 1  # nothing has changed since


@pytest.mark.parametrize("people", [120, 3], ids=["many", "few"])
def test_scheduled_tuning_keeps_the_examples_of_a_person_in_one_fold(deployment: Deployment, people: int) -> None:
    name = deployment.new_model(policy={"holdout": 0.0, "tune": {"every": "1h", "apply": False}})
    x, y = problem(360, seed=14)
    for i in range(people):
        some = slice(i, None, people)
        deployment.add_examples(name, x[some], y[some], first=1000 * i, subject=f"{name}-{i}")
    deployment.adapted(name)
    deployment.settled(name)
    deployment.let_pass(name, timedelta(hours=1))
    listed: list[dict[str, Any]] = []

    def tuned() -> bool:
        listed[:] = deployment.get(f"/v1/models/{name}/analyses?kind=tuning")["items"]
        return bool(listed) and listed[0]["position"] is not None

    deployment.wait_until(tuned)
    table = deployment.get(f"/v1/models/{name}/analyses/{listed[0]['id']}")["result"]["table"]
    by, other = "subject", "example"
    if people < 10:  # too few for ten folds
        by, other = other, by
    values = [entry["value"] for entry in table]
    asked = analyse(deployment, name, kind="tuning", values=values, folds=10, by=by)["result"]["table"]
    losses = [entry["loss"] for entry in table]
    assert losses == pytest.approx([entry["loss"] for entry in asked], rel=1e-6)
    if people > 10:
        apart = analyse(deployment, name, kind="tuning", values=values, folds=10, by=other)["result"]["table"]
        assert losses != pytest.approx([entry["loss"] for entry in apart], rel=1e-6)


def test_cross_validation_by_subject_predicts_people_that_the_model_does_not_know(deployment: Deployment) -> None:
    """Each person has the same input and label again and again: without the person, nobody can tell the label."""
    people = 40  # all of them are in the same fold once in 10^11 runs
    given = {"input": {"kind": "vector", "dim": people}, "regularizer": {"kind": "l2", "delta": 1e-3}}
    name = deployment.new_model(policy={"holdout": 0.0}, **given)
    for i, one in enumerate(np.eye(people, dtype=np.float32)):
        examples = np.repeat(one[None], 20, 0), np.full(20, i % 2)
        deployment.add_examples(name, *examples, first=100 * i, subject=f"{name}-{i}")
    deployment.adapted(name)
    known = analyse(deployment, name, kind="cross_validation", folds=2, by="example")["result"]["metrics"]
    new = analyse(deployment, name, kind="cross_validation", folds=2, by="subject")["result"]["metrics"]
    assert known["accuracy"] == 1
    assert new["accuracy"] <= 0.5
    # standard errors, and what MLflow gets, allow for all examples of a person
    left_out = analyse(deployment, name, kind="leave_one_out")["result"]["metrics"]
    tuned = analyse(deployment, name, kind="tuning", values=[1e-3, 1.0], folds=2)["result"]["table"]
    for metrics in (known, new, left_out, *tuned):
        assert metrics["heaviest"] == pytest.approx(1 / people)


def test_suspicious_labels_are_corrected_or_removed(deployment: Deployment) -> None:
    name = deployment.new_model(policy={"holdout": 0.0})
    x, y = problem(200, seed=13)
    likely = (2 * x[:, 0] - x[:, -1] > 0).astype(int)
    deployment.add_examples(name, x, np.where(np.arange(200) < 3, 1 - likely, likely))
    deployment.adapted(name)
    rows = analyse(deployment, name, kind="leave_one_out", top=20)["result"]["rows"]
    assert {"e0", "e1", "e2"} <= {row["id"] for row in rows}
    with httpx.Client(base_url=deployment.url, follow_redirects=True) as browser:
        browser.post("/sign-in", data={"key": deployment.admin_key})
        page = browser.get(f"/models/{name}/analyses").text
        assert "What would the model predict for each example without having learnt it?" in page
        assert f"Change to {likely[0]}" in page
        token = page.split('name="token" value="')[1].split('"')[0]
        form = {"token": token, "id": "e0", "y": str(likely[0])}
        place, headers = f"/models/{name}/analyses", {"Origin": deployment.url}
        assert "corrected" in browser.post(f"{place}/relabel", data=form, headers=headers).text
        assert "removed" in browser.post(f"{place}/remove", data={"token": token, "id": "e1"}, headers=headers).text
    with Client(deployment.url, deployment.admin_key) as client:
        client.correct_label(name, "e2", int(likely[2]))
        assert [client.example(name, id).y for id in ("e0", "e2")] == [likely[0], likely[2]]
    deployment.settled(name)
    assert deployment.get(f"/v1/models/{name}")["counts"]["train"] == 199


def test_the_page_says_why_an_analysis_failed(deployment: Deployment) -> None:
    name = deployment.new_model(policy={"holdout": 0.0})
    deployment.add_examples(name, *problem(50))
    deployment.adapted(name)
    started = deployment.post(f"/v1/models/{name}/analyses", {"kind": "influence", "by": "example"})
    assert deployment.ended(started["job"])["state"] == "failed"
    with httpx.Client(base_url=deployment.url, follow_redirects=True) as browser:
        browser.post("/sign-in", data={"key": deployment.admin_key})
        page = browser.get(f"/models/{name}/analyses").text
    assert "The model has no holdout. Name inputs instead" in page
    assert "in progress" not in page


def test_client_and_command_line_return_frames_and_charts(
    deployment: Deployment, analysed: tuple[str, Numbers, Numbers]
) -> None:
    name = analysed[0]
    with Client(deployment.url, deployment.admin_key) as client:
        sources = client.analyse(name, {"kind": "influence", "by": "source"})
        assert set(sources.to_pandas()["source"]) == {"bad", "good0", "good1"}
        tuned = client.analyse(name, {"kind": "tuning", "values": [0.1, 1, 10], "folds": 3})
        folds = client.analyse(name, {"kind": "cross_validation", "folds": 3})
        removed = client.preview(name, remove={"ids": ["e1"]})
        suspects = client.analyse(name, "leave_one_out")
        for found in (sources, tuned, folds, removed, suspects):
            assert found.plot().has_data()
            assert len(found.to_pandas()) > 0
            assert client.analysis(name, found.id).result == found.result
        assert next(iter(client.analyses(name, kind="tuning"))).id == tuned.id
        assert client.predict(name, analysed[1][:1], explain=True).outputs[0].contributions is not None
    place = ["--url", deployment.url, "--key", deployment.admin_key]
    for words in (["run", name, "cross_validation"], ["preview", name, "--remove-id", "e1"], ["list", name]):
        result = CliRunner().invoke(cli.app, ["analyses", *words, *place])
        assert result.exit_code == 0, result.output
    shown = CliRunner().invoke(cli.app, ["analyses", "show", name, removed.id, *place, "--json"])
    assert json.loads(shown.stdout)["result"]["removed"] == 1
    with httpx.Client(base_url=deployment.url, follow_redirects=True) as browser:
        browser.post("/sign-in", data={"key": deployment.admin_key})
        page = browser.get(f"/models/{name}/analyses")
        assert page.status_code == 200
        assert page.text.count("<svg") >= 5
        assert f"/models/{name}/analyses" in browser.get(f"/models/{name}").text
