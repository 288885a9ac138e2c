"""Jobs that cannot succeed: they say why, nobody else is held up, and the model recovers once the cause is gone."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest

from core.ledger import append
from core.ledger.batch import Batch
from core.models import catalog
from tests.worker.house import House, Numbers, problem

POISON = np.array([[3e37]], np.float32)
"""Its tenth power is beyond all numbers."""


def store(house: House, name: str, x: Numbers, y: Numbers, first: int, split: str) -> None:
    """Put examples into the ledger that the service would refuse today for their size."""
    count = len(x)
    ids = pa.array([f"e{first + i}" for i in range(count)], pa.string())
    batch = Batch(ids, [None] * count, np.float32(x), np.float64(y), [split == "holdout"] * count)
    with house.database.write() as session:
        append.add(session, append.lock(session, catalog.find(session, name, None).id), batch)


def curve(n: int) -> tuple[Numbers, Numbers]:
    x, y = problem(n, dim=1)
    return x / 4, y


@pytest.fixture
def name(house: House) -> str:
    """A trained model whose features are powers up to the tenth."""
    name = house.new_model(input={"kind": "vector", "dim": 1}, architecture={"kind": "linear", "degree": 10})
    x, y = curve(200)
    house.add_examples(name, x, y, split="train")
    assert house.adapted(name)["state"] == "succeeded"
    return name


def poison(house: House, name: str, split: str) -> None:
    store(house, name, POISON, np.array([1]), 200, split)


def test_a_job_that_cannot_succeed_says_why_and_the_champion_stays(house: House, name: str) -> None:
    before = house.champion(name)
    poison(house, name, split="train")
    job = house.adapted(name)
    assert (job["state"], job["attempts"], job["version"]) == ("failed", 3, None)
    assert job["error"]["code"] == "solver_failed"
    assert "check the examples" in job["error"]["detail"]
    assert job["error"]["detail"] in job["message"]
    assert house.champion(name) == before
    assert house.get(f"/v1/models/{name}")["pending"] == 1


def test_other_models_go_on_meanwhile(house: House, name: str) -> None:
    poison(house, name, split="train")
    failing = house.post(f"/v1/models/{name}/adaptations")["id"]
    other, (x, y) = house.new_model(), problem(100)
    house.add_examples(other, x, y)
    assert house.adapted(other)["state"] == "succeeded"
    assert house.ended(failing)["state"] == "failed"


def test_a_model_recovers_when_the_cause_is_removed(house: House, name: str) -> None:
    before = house.weights(name)
    poison(house, name, split="train")
    assert house.adapted(name)["state"] == "failed"
    job = house.ended(house.remove(name, [200])["job"])
    assert (job["state"], job["from_position"], job["to_position"]) == ("succeeded", 200, 202), job
    np.testing.assert_allclose(house.weights(name), before, rtol=1e-6)
    assert house.champion(name)["kind"] == "adapted"


def test_a_failed_retrain_leaves_all_as_it_was(house: House, name: str) -> None:
    poison(house, name, split="train")
    job = house.ended(house.post(f"/v1/models/{name}/retrains")["id"])
    assert (job["state"], job["error"]["code"]) == ("failed", "solver_failed")
    assert house.champion(name)["version"] == 1
    assert house.get(f"/v1/models/{name}/comparisons")["items"] == []


def test_an_extreme_holdout_example_fails_nothing(house: House, name: str) -> None:
    poison(house, name, split="holdout")
    job = house.adapted(name)
    assert job["state"] == "succeeded", job["error"]
    job = house.ended(house.remove(name, [0])["job"])
    assert job["state"] == "succeeded", job["error"]


def test_a_first_training_that_fails_can_be_asked_for_again(house: House) -> None:
    name = house.new_model(input={"kind": "vector", "dim": 1}, architecture={"kind": "linear", "degree": 10})
    x, y = curve(100)
    house.add_examples(name, x, y, split="train")
    poison(house, name, split="train")
    assert house.adapted(name)["state"] == "failed"
    house.remove(name, [200])
    assert house.adapted(name)["state"] == "succeeded"


def test_a_model_whose_examples_are_all_removed_says_so_at_once(house: House) -> None:
    name, (x, y) = house.new_model(), problem(50)
    house.add_examples(name, x, y, split="train")
    house.adapted(name)
    job = house.ended(house.remove(name, range(50))["job"])
    assert (job["state"], job["attempts"], job["error"]["code"]) == ("failed", 1, "nothing_to_train_on")
    house.add_examples(name, x[:40], y[:40], first=100, split="train")
    job = house.adapted(name)
    assert (job["state"], house.champion(name)["position"]) == ("succeeded", 140), job
    assert house.datasets_agree(name)


@pytest.mark.parametrize("scale", [1e10, 3e37])
def test_extreme_inputs_end_in_a_version_or_in_words(house: House, scale: float) -> None:
    name, (x, y) = house.new_model(), problem(210)
    house.add_examples(name, x[:200], y[:200], split="train")
    house.adapted(name)
    store(house, name, x[200:] * np.float32(scale / 4), y[200:], 200, "train")
    job = house.adapted(name)
    assert job["state"] == "succeeded" or job["error"]["code"] == "solver_failed", job
    house.remove(name, range(200, 210))
    house.settled(name)
    version = house.champion(name)
    assert (version["position"], version["certificate"]["relative"] <= 0.01) == (220, True)
