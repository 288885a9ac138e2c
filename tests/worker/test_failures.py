"""Jobs that cannot succeed: they say why, nobody else is held up, and the model recovers once the cause is gone."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest

from core import ledger
from core.ledger.batch import Batch
from core.models import catalog
from core.models.policy import policy_of
from tests.worker.deployment import Deployment, Numbers, problem

POISON = np.array([[3e37]], np.float32)
"""Its tenth power is beyond all numbers."""


def store(deployment: Deployment, name: str, x: Numbers, y: Numbers, first: int, split: str) -> None:
    """Put examples into the ledger that the service would refuse today for their size."""
    count = len(x)
    ids = pa.array([f"e{first + i}" for i in range(count)], pa.string())
    batch = Batch(ids, [None] * count, np.float32(x), np.float64(y), [split == "holdout"] * count)
    with deployment.database.read() as session:
        model = catalog.find(session, name, None)
    ledger.add(deployment.database, model.id, policy_of(model).holdout_draw, batch)


def curve(n: int) -> tuple[Numbers, Numbers]:
    x, y = problem(n, dim=1)
    return x / 4, y


@pytest.fixture
def name(deployment: Deployment) -> str:
    """A trained model whose features are powers up to the tenth."""
    name = deployment.new_model(input={"kind": "vector", "dim": 1}, architecture={"kind": "linear", "degree": 10})
    x, y = curve(200)
    deployment.add_examples(name, x, y, split="train")
    assert deployment.adapted(name)["state"] == "succeeded"
    return name


def poison(deployment: Deployment, name: str, split: str) -> None:
    store(deployment, name, POISON, np.array([1]), 200, split)


def test_a_job_that_cannot_succeed_has_a_reason_and_the_champion_stays(deployment: Deployment, name: str) -> None:
    before = deployment.champion(name)
    poison(deployment, name, split="train")
    job = deployment.adapted(name)
    assert (job["state"], job["attempts"], job["version"]) == ("failed", 3, None)
    assert job["error"]["code"] == "solver_failed"
    assert "Check the examples" in job["error"]["detail"]
    assert job["error"]["detail"] in job["message"]
    assert deployment.champion(name) == before
    assert deployment.get(f"/v1/models/{name}")["pending"] == 1


def test_other_models_go_on_meanwhile(deployment: Deployment, name: str) -> None:
    poison(deployment, name, split="train")
    failing = deployment.post(f"/v1/models/{name}/adaptations")["id"]
    other, (x, y) = deployment.new_model(), problem(100)
    deployment.add_examples(other, x, y)
    assert deployment.adapted(other)["state"] == "succeeded"
    assert deployment.ended(failing)["state"] == "failed"


def test_a_model_recovers_when_the_cause_is_removed(deployment: Deployment, name: str) -> None:
    before = deployment.weights(name)
    poison(deployment, name, split="train")
    assert deployment.adapted(name)["state"] == "failed"
    job = deployment.ended(deployment.remove(name, [200])["job"])
    assert (job["state"], job["from_position"], job["to_position"]) == ("succeeded", 200, 202), job
    np.testing.assert_allclose(deployment.weights(name), before, rtol=1e-6)
    assert deployment.champion(name)["kind"] == "adapted"


def test_a_failed_retrain_leaves_all_as_it_was(deployment: Deployment, name: str) -> None:
    poison(deployment, name, split="train")
    job = deployment.ended(deployment.post(f"/v1/models/{name}/retrains")["id"])
    assert (job["state"], job["error"]["code"]) == ("failed", "solver_failed")
    assert deployment.champion(name)["version"] == 1
    assert deployment.get(f"/v1/models/{name}/comparisons")["items"] == []


def test_an_extreme_holdout_example_fails_nothing(deployment: Deployment, name: str) -> None:
    poison(deployment, name, split="holdout")
    job = deployment.adapted(name)
    assert job["state"] == "succeeded", job["error"]
    job = deployment.ended(deployment.remove(name, [0])["job"])
    assert job["state"] == "succeeded", job["error"]


def test_a_first_training_that_fails_can_be_asked_for_again(deployment: Deployment) -> None:
    name = deployment.new_model(input={"kind": "vector", "dim": 1}, architecture={"kind": "linear", "degree": 10})
    x, y = curve(100)
    deployment.add_examples(name, x, y, split="train")
    poison(deployment, name, split="train")
    assert deployment.adapted(name)["state"] == "failed"
    deployment.remove(name, [200])
    assert deployment.adapted(name)["state"] == "succeeded"


def test_a_model_whose_examples_are_all_removed_is_withdrawn_and_can_be_trained_again(deployment: Deployment) -> None:
    name, (x, y) = deployment.new_model(policy={"promote": "manual"}), problem(50)
    deployment.add_examples(name, x, y, split="train")
    deployment.adapted(name)
    deployment.post(f"/v1/models/{name}/versions/1/promote")
    job = deployment.ended(deployment.remove(name, range(50))["job"])
    assert (job["state"], "the model is withdrawn" in job["message"]) == ("succeeded", True)
    with deployment.client() as api:
        model = api.get(f"/v1/models/{name}").json()
        assert (model["champion"], model["counts"]["train"], model["withdrawn"]) == (None, 0, True)
        answer = api.post(f"/v1/models/{name}/predictions", json={"inputs": x[:1].tolist()})
    assert (answer.status_code, answer.json()["code"]) == (409, "champion_missing")
    assert "withdrawn because it has no training examples left" in answer.json()["detail"]
    deployment.add_examples(name, x[:40], y[:40], first=100, split="train")
    job = deployment.adapted(name)
    assert (job["state"], deployment.version(name, job["version"])["position"]) == ("succeeded", 140), job
    deployment.post(f"/v1/models/{name}/versions/{job['version']}/promote")
    assert deployment.datasets_agree(name)


@pytest.mark.parametrize("deployment", ["sqlite"], indirect=True)
@pytest.mark.parametrize("scale", [1e10, 3e37])
def test_a_model_recovers_from_extreme_inputs(deployment: Deployment, scale: float) -> None:
    name, (x, y) = deployment.new_model(), problem(210)
    deployment.add_examples(name, x[:200], y[:200], split="train")
    deployment.adapted(name)
    store(deployment, name, x[200:] * np.float32(scale / 4), y[200:], 200, "train")
    job = deployment.adapted(name)
    assert (job["state"], job["error"]) == ("succeeded", None)
    deployment.remove(name, range(200, 210))
    deployment.settled(name)
    version = deployment.champion(name)
    assert (version["position"], version["certificate"]["relative"] <= 0.01) == (220, True)
