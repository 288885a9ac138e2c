"""Adaptations from end to end: what is asked for over REST is what scikit-learn fits on the retained examples."""

from __future__ import annotations

import numpy as np
import pytest

from tests.worker.house import House, fitted, problem

TRAIN = {"split": "train"}


def test_the_first_adaptation_trains(house: House) -> None:
    name, (x, y) = house.new_model(), problem(300)
    house.add_examples(name, x, y, **TRAIN)
    job = house.adapted(name)
    assert (job["state"], job["version"], job["from_position"], job["to_position"]) == ("succeeded", 1, 0, 300)
    version = house.get(f"/v1/models/{name}/versions/1")
    assert (version["kind"], version["state"], version["method"]) == ("trained", "champion", "retrain")
    np.testing.assert_allclose(house.weights(name), fitted(x, y), atol=1e-4)


def test_adds_removals_and_a_new_regularizer_become_one_version(house: House) -> None:
    name, (x, y) = house.new_model(), problem(400)
    house.add_examples(name, x[:300], y[:300], **TRAIN)
    house.adapted(name)
    house.add_examples(name, x[300:], y[300:], first=300, **TRAIN)
    house.post(f"/v1/models/{name}/changes", {"regularizer": {"kind": "l2", "delta": 3.0}})
    removal = house.post(f"/v1/models/{name}/removals", {"ids": [f"e{i}" for i in range(50)]})
    job = house.ended(removal["job"])
    assert job["state"] == "succeeded", job
    house.adapted(name)
    champion = house.get(f"/v1/models/{name}")
    assert champion["pending"] == 0
    versions = house.get(f"/v1/models/{name}/versions")["items"]
    assert [v["kind"] for v in versions[:-1]] == ["adapted"] * (len(versions) - 1)
    truth, found = fitted(x[50:], y[50:], 3.0), house.weights(name)
    bound = versions[0]["certificate"]["bound"]
    assert np.linalg.norm(found - truth) <= bound + 1e-4
    assert versions[0]["certificate"]["relative"] <= 0.01


@pytest.mark.parametrize("kind", ["adaptations", "retrains"])
def test_nothing_to_do_is_said(house: House, kind: str) -> None:
    name, (x, y) = house.new_model(), problem(100)
    house.add_examples(name, x, y, **TRAIN)
    house.adapted(name)
    job = house.ended(house.post(f"/v1/models/{name}/{kind}")["id"])
    assert job["state"] == "succeeded"


def test_a_retrain_is_compared_with_the_adapted_version_at_the_same_position(house: House) -> None:
    name, (x, y) = house.new_model(), problem(500)
    house.add_examples(name, x[:300], y[:300])
    house.adapted(name)
    house.add_examples(name, x[300:], y[300:], first=300)
    job = house.ended(house.post(f"/v1/models/{name}/retrains")["id"])
    assert (job["state"], job["to_position"]) == ("succeeded", 500), job
    [comparison] = house.get(f"/v1/models/{name}/comparisons")["items"]
    assert (comparison["position"], comparison["adapted"], comparison["retrained"]) == (500, 2, 3)
    assert comparison["within_tolerance"]
    assert comparison["disagreement"] <= 0.01
    distance = np.linalg.norm(house.weights(name, 2) - house.weights(name, 3))
    assert comparison["weight_distance"] == pytest.approx(distance)
    assert house.get(f"/v1/models/{name}")["champion"] == 2
