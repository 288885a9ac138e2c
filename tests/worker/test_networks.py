"""Networks from end to end: there is no bound for them, so they are measured."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.worker.deployment import Deployment, Numbers, problem
from tests.worker.erasure_helpers import erase

# What is tested here is the engine's and the worker's: the database is beside the point.
pytestmark = pytest.mark.parametrize("deployment", ["sqlite"], indirect=True)

MLP = {"kind": "mlp", "hidden": [16]}


def bent(n: int, seed: int = 0) -> tuple[Numbers, Numbers]:
    """Whether two inputs have the same sign: of no use to a linear model."""
    x = np.random.default_rng(seed).normal(size=(n, 4)).astype(np.float32)
    return x, (x[:, 0] * x[:, 1] > 0).astype(int)


def grown(deployment: Deployment, x: Numbers, y: Numbers, **spec: Any) -> str:
    """A model that is trained on the first 600 examples and judged by the last 200."""
    name = deployment.new_model(training={"learning_rate": 0.01}, **spec)
    deployment.add_examples(name, x[:600], y[:600], split="train")
    deployment.add_examples(name, x[-200:], y[-200:], first=10_000, split="holdout")
    assert deployment.adapted(name)["state"] == "succeeded"
    return name


def test_an_adapted_network_is_measured_and_as_good_as_the_one_before(deployment: Deployment) -> None:
    x, y = bent(1000)
    name = grown(deployment, x, y, architecture=MLP)
    before = deployment.champion(name)["metrics"]["accuracy"]
    deployment.add_examples(name, x[600:800], y[600:800], first=600, split="train")
    deployment.remove(name, range(60))
    deployment.adapted(name)
    deployment.settled(name)
    version = deployment.champion(name)
    assert (version["kind"], version["method"], version["position"]) == ("adapted", "kprior", 1060)
    assert before > 0.8
    assert version["metrics"]["accuracy"] > before - 0.05
    assert version["certificate"]["kind"] == "measured"
    assert (version["certificate"]["bound"], version["certificate"]["passes"]) == (None, 0)
    assert version["cost"]["data_passes"] == 0
    audit = version["certificate"]["audit"]
    assert (audit["removed"], audit["unseen"], audit["holdout"]) == (60, 200, True)
    assert version["cost"]["backward_passes"] <= 8_000  # the budget of so few examples
    assert deployment.datasets_agree(name)


def test_a_network_made_from_a_linear_model_predicts_the_same(deployment: Deployment) -> None:
    x, y = problem(800)
    name = grown(deployment, x, y)
    before = deployment.champion(name)["metrics"]["accuracy"]
    deployment.ended(deployment.post(f"/v1/models/{name}/changes", {"architecture": MLP})["job"])
    version = deployment.champion(name)
    assert (version["kind"], version["certificate"]["kind"]) == ("adapted", "measured")
    assert version["metrics"]["accuracy"] > before - 0.05
    assert deployment.get(f"/v1/models/{name}")["architecture"]["kind"] == "mlp"


def test_a_network_becomes_a_linear_model_within_its_bound(deployment: Deployment) -> None:
    x, y = problem(800)
    name = grown(deployment, x, y, architecture=MLP)
    deployment.ended(
        deployment.post(f"/v1/models/{name}/changes", {"architecture": {"kind": "linear", "degree": 1}})["job"]
    )
    version = deployment.champion(name)
    assert version["certificate"]["kind"] == "bound"
    assert version["certificate"]["relative"] <= 0.01


def test_the_same_changes_give_the_same_network(deployment: Deployment) -> None:
    x, y = bent(800)
    found = []
    for _ in range(2):
        name = grown(deployment, x, y, architecture=MLP)
        deployment.ended(deployment.remove(name, range(50))["job"])
        found.append(deployment.weights(name))
    assert np.array_equal(found[0], found[1])


def test_a_retrained_network_is_compared_by_its_predictions(deployment: Deployment) -> None:
    x, y = bent(800)
    name = grown(deployment, x, y, architecture=MLP)
    deployment.remove(name, range(30))
    job = deployment.ended(deployment.post(f"/v1/models/{name}/retrains")["id"])
    assert job["state"] == "succeeded", job
    [comparison] = deployment.get(f"/v1/models/{name}/comparisons")["items"]
    assert comparison["weight_distance"] is None
    assert 0 <= comparison["disagreement"] < 0.2
    assert set(comparison["accuracy"]) == {"adapted", "retrained", "difference_se"}


def test_a_network_is_retrained_for_an_erasure_by_default(deployment: Deployment) -> None:
    x, y = bent(800)
    name = grown(deployment, x, y, architecture=MLP)
    deployment.add_examples(name, x[:20] + 0.01, y[:20], first=20_000, split="train", subject=f"person of {name}")
    deployment.adapted(name)
    [part] = erase(deployment, f"person of {name}")["models"]
    assert part["method"] == "retrained"
    champion = deployment.champion(name)
    assert (champion["version"], champion["kind"]) == (part["version"], "trained")
    assert deployment.get(f"/v1/models/{name}/comparisons")["items"] == []  # no adapted version is compared with it


def test_a_removed_class_is_forgotten_and_the_message_names_the_method(deployment: Deployment) -> None:
    """Three rings of points; the middle one goes."""
    generator = np.random.default_rng(0)
    y = generator.integers(0, 3, 900)
    angle, radius = generator.uniform(0, 2 * np.pi, 900), 1 + y + generator.normal(0, 0.15, 900)
    x = np.stack([radius * np.cos(angle), radius * np.sin(angle), 0 * angle, 0 * angle], 1).astype(np.float32)
    target = {"kind": "classes", "values": [0, 1, 2]}
    name = grown(deployment, x, y, architecture=MLP, target=target)
    before = deployment.champion(name)["metrics"]["accuracy"]
    job = deployment.ended(deployment.remove(name, np.flatnonzero(y[:600] == 1).tolist())["job"])
    version = deployment.champion(name)
    assert before > 0.85
    assert version["version"] == 2, job
    trials = deployment.trials(name, 2)
    assert trials[-1]["method"] == version["method"]
    assert [c["predicted"] for c in trials] == sorted(c["predicted"] for c in trials)
    if version["method"] != "retrain":
        assert version["certificate"]["audit"]["forgotten_label_rate"] <= 0.1
    for failed in trials[:-1]:
        assert failed["objection"] in job["message"]
    answers = deployment.post(f"/v1/models/{name}/predictions", {"inputs": x[600:][y[600:] == 1].tolist()})
    assert np.mean([output["class"] == 1 for output in answers["outputs"]]) < 0.1


def test_a_network_that_cannot_be_checked_by_a_holdout_is_adapted_all_the_same(deployment: Deployment) -> None:
    x, y = bent(600)
    name = deployment.new_model(training={"learning_rate": 0.01}, architecture=MLP)
    deployment.add_examples(name, x, y, split="train")
    deployment.adapted(name)
    job = deployment.ended(deployment.remove(name, range(30))["job"])
    assert job["state"] == "succeeded", job
    version = deployment.champion(name)
    assert version["version"] == 2
    if version["method"] != "retrain":
        assert version["certificate"]["audit"]["holdout"] is False


def share_right(deployment: Deployment, name: str, x: Numbers, y: Numbers) -> float:
    """The share of examples whose class the champion predicts."""
    outputs = deployment.post(f"/v1/models/{name}/predictions", {"inputs": x.tolist()})["outputs"]
    return float(np.mean([output["class"] == label for output, label in zip(outputs, y, strict=True)]))


def test_a_network_whose_whole_memory_is_removed_is_as_good_as_before(deployment: Deployment) -> None:
    """Which examples it remembers is no secret; and there is no holdout to tell."""
    x, y = bent(600)
    name = deployment.new_model(training={"learning_rate": 0.01}, architecture=MLP)
    deployment.add_examples(name, x, y, split="train")
    deployment.adapted(name)
    gone = [position - 1 for position in deployment.state(name).memory.key.tolist()]
    kept = np.setdiff1d(np.arange(600), gone)
    before = share_right(deployment, name, x[kept], y[kept])
    assert deployment.ended(deployment.remove(name, gone)["job"])["state"] == "succeeded"
    assert deployment.champion(name)["version"] == 2
    assert len(gone) > 0
    assert share_right(deployment, name, x[kept], y[kept]) >= before - 0.03
