"""What the policy says about certificates and memory, and what examples beside the training ones do: nothing."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from core.ledger.holdout import as_sample
from core.ledger.tables import HoldoutSample
from core.models import catalog
from tests.worker.house import House, fitted, problem

TRAIN = {"split": "train"}
X, Y = problem(400)


def trained(house: House, **policy: Any) -> str:
    """A model with a version for the first 300 examples."""
    name = house.new_model(policy=policy)
    house.add_examples(name, X[:300], Y[:300], **TRAIN)
    house.adapted(name)
    return name


def sample(house: House, name: str) -> list[int]:
    """The positions of the examples that versions are measured on."""
    with house.database.read() as session:
        found = as_sample(session.get(HoldoutSample, catalog.find(session, name, None).id))
    return found.rows.tolist() if found else []


def added(house: House, name: str) -> dict[str, Any]:
    house.add_examples(name, X[300:], Y[300:], first=300, **TRAIN)
    return house.version(name, house.adapted(name)["version"])


def removed(house: House, name: str) -> dict[str, Any]:
    return house.version(name, house.ended(house.remove(name, range(20))["job"])["version"])


@pytest.mark.parametrize(
    ("certify", "after_training", "after_adding", "after_removing"),
    [("never", False, False, False), ("removals", False, False, True), ("always", True, True, True)],
)
def test_the_past_is_read_for_certificates_and_for_nothing_else(
    house: House, certify: str, after_training: bool, after_adding: bool, after_removing: bool
) -> None:
    name = trained(house, certify=certify)
    assert (house.champion(name)["certificate"] is not None) == after_training
    for version, expected in ((added(house, name), after_adding), (removed(house, name), after_removing)):
        assert version["kind"] == "adapted"
        assert (version["certificate"] is not None) == expected
        assert version["cost"]["data_passes"] == (version["certificate"]["passes"] if expected else 0)
        assert version["cost"]["backward_passes"] > 0


def test_without_a_certificate_it_is_still_near_a_retrain(house: House) -> None:
    name = trained(house, certify="never")
    removed(house, name)
    added(house, name)
    truth = fitted(X[20:], Y[20:])
    assert np.linalg.norm(house.weights(name) - truth) < 0.02 * np.linalg.norm(truth)


def test_a_bound_that_cannot_be_met_ends_in_a_retrain(house: House) -> None:
    name = trained(house, tolerance={"relative_bound": 1e-15})
    version = removed(house, name)
    assert (version["kind"], version["method"], version["parent"]) == ("trained", "retrain", None)
    assert (version["state"], version["position"]) == ("champion", 320)
    np.testing.assert_allclose(house.weights(name), fitted(X[20:300], Y[20:300]), atol=1e-6)
    assert house.datasets_agree(name)


def test_a_tight_tolerance_is_met_by_refinements(house: House) -> None:
    name = trained(house, tolerance={"relative_bound": 1e-9})
    version = removed(house, name)
    assert version["kind"] == "adapted"
    assert version["certificate"]["relative"] <= 1e-9
    np.testing.assert_allclose(house.weights(name), fitted(X[20:300], Y[20:300]), atol=1e-4)


def test_an_example_added_and_removed_inside_one_range_cancels_out(house: House) -> None:
    name = trained(house)
    before = house.weights(name)
    with house.worker_held():
        house.add_examples(name, 50 * X[300:310], 1 - Y[300:310], first=300, **TRAIN)
        house.remove(name, range(300, 310))
    house.settled(name)
    assert house.champion(name)["position"] == 320
    np.testing.assert_allclose(house.weights(name), before, atol=1e-9)
    assert house.datasets_agree(name)


def test_an_example_removed_and_added_again_counts_once(house: House) -> None:
    name = trained(house)
    before = house.weights(name)
    with house.worker_held():
        house.remove(name, range(10))
        house.add_examples(name, X[:10], Y[:10], **TRAIN)
    house.settled(name)
    assert house.champion(name)["position"] == 320
    bound = house.champion(name)["certificate"]["bound"]
    assert np.linalg.norm(house.weights(name) - before) <= 2 * bound + 1e-6
    assert house.datasets_agree(name)


def test_holdout_examples_never_train(house: House) -> None:
    name = trained(house)
    before = house.weights(name)
    house.add_examples(name, 50 * X[300:], 1 - Y[300:], first=300, split="holdout")
    house.adapted(name)
    np.testing.assert_allclose(house.weights(name), before, atol=1e-9)
    assert house.champion(name)["metrics"]["accuracy"] < 0.5
    house.ended(house.remove(name, range(300, 400))["job"])
    np.testing.assert_allclose(house.weights(name), before, atol=1e-9)
    assert house.champion(name)["metrics"] == {}
    assert house.champion(name)["position"] == 500


def test_versions_are_measured_on_the_same_sample_of_the_holdout(house: House) -> None:
    name = trained(house, evaluation={"rows": 40})
    house.add_examples(name, X[300:], Y[300:], first=300, split="holdout")
    house.adapted(name)
    first = house.champion(name)["metrics"]
    assert first["rows"] == 40
    assert first["accuracy_se"] == pytest.approx((first["accuracy"] * (1 - first["accuracy"]) / 40) ** 0.5)
    rows = sample(house, name)
    house.ended(house.remove(name, range(5))["job"])
    assert sample(house, name) == rows
    assert house.champion(name)["metrics"]["rows"] == 40
    house.ended(house.post(f"/v1/models/{name}/retrains")["id"])
    [comparison] = house.get(f"/v1/models/{name}/comparisons")["items"]
    assert comparison["rows"] == 40
    assert comparison["accuracy"]["difference_se"] <= first["accuracy_se"]
    house.ended(house.remove(name, [position - 1 for position in rows[:10]])["job"])
    assert sample(house, name) == rows[10:]
    assert house.champion(name)["metrics"]["rows"] == 30


def test_without_a_holdout_a_comparison_is_made_on_a_sample_of_the_training_examples(house: House) -> None:
    name = trained(house, evaluation={"rows": 40})
    house.ended(house.remove(name, range(5))["job"])
    house.ended(house.post(f"/v1/models/{name}/retrains")["id"])
    [comparison] = house.get(f"/v1/models/{name}/comparisons")["items"]
    assert comparison["rows"] == 40
    assert comparison["disagreement"] is not None
    assert comparison["accuracy"] is None


def test_no_version_remembers_what_was_removed(house: House) -> None:
    name = trained(house, memory={"fraction": 0.5})
    remembered = house.state(name).memory.key.tolist()[:40]
    house.ended(house.remove(name, [position - 1 for position in remembered])["job"])
    assert not set(remembered) & set(house.state(name).memory.key.tolist())
    added(house, name)
    assert not set(remembered) & set(house.state(name).memory.key.tolist())
    assert house.champion(name)["memory"]["size"] == 180
