"""What the policy says about certificates and memory, and what examples beside the training ones do: nothing."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from core.ledger.holdout_sample import as_sample
from core.models import catalog
from core.tables.ledger import HoldoutSample
from tests.worker.deployment import Deployment, fitted, problem

# What is tested here is the engine's and the worker's: the database is beside the point.
pytestmark = pytest.mark.parametrize("deployment", ["sqlite"], indirect=True)

TRAIN = {"split": "train"}
X, Y = problem(400)


def trained(deployment: Deployment, **policy: Any) -> str:
    """A model with a version for the first 300 examples."""
    name = deployment.new_model(policy=policy)
    deployment.add_examples(name, X[:300], Y[:300], **TRAIN)
    deployment.adapted(name)
    return name


def sample(deployment: Deployment, name: str) -> list[int]:
    """The positions of the examples that versions are measured on."""
    with deployment.database.read() as session:
        found = as_sample(session.get(HoldoutSample, catalog.find(session, name, None).id))
    return found.rows.tolist() if found else []


def added(deployment: Deployment, name: str) -> dict[str, Any]:
    deployment.add_examples(name, X[300:], Y[300:], first=300, **TRAIN)
    return deployment.version(name, deployment.adapted(name)["version"])


def removed(deployment: Deployment, name: str) -> dict[str, Any]:
    return deployment.version(name, deployment.ended(deployment.remove(name, range(20))["job"])["version"])


@pytest.mark.parametrize(
    ("certify", "after_training", "after_adding", "after_removing"),
    [("never", False, False, False), ("removals", False, False, True), ("always", True, True, True)],
)
def test_the_past_is_read_for_certificates_and_for_nothing_else(
    deployment: Deployment, certify: str, after_training: bool, after_adding: bool, after_removing: bool
) -> None:
    name = trained(deployment, certify=certify)
    assert (deployment.champion(name)["certificate"] is not None) == after_training
    for version, expected in ((added(deployment, name), after_adding), (removed(deployment, name), after_removing)):
        assert version["kind"] == "adapted"
        assert (version["certificate"] is not None) == expected
        assert version["cost"]["data_passes"] == (version["certificate"]["passes"] if expected else 0)
        assert version["cost"]["backward_passes"] > 0


def test_without_a_certificate_it_is_still_near_a_retrain(deployment: Deployment) -> None:
    name = trained(deployment, certify="never")
    removed(deployment, name)
    added(deployment, name)
    truth = fitted(X[20:], Y[20:])
    assert np.linalg.norm(deployment.weights(name) - truth) < 0.02 * np.linalg.norm(truth)


def test_a_bound_that_cannot_be_met_ends_in_a_retrain(deployment: Deployment) -> None:
    name = trained(deployment, tolerance={"relative_bound": 1e-15})
    version = removed(deployment, name)
    assert (version["kind"], version["method"], version["parent"]) == ("trained", "retrain", None)
    assert (version["state"], version["position"]) == ("champion", 320)
    np.testing.assert_allclose(deployment.weights(name), fitted(X[20:300], Y[20:300]), atol=1e-6)
    assert deployment.datasets_agree(name)


def test_a_tight_tolerance_is_met_by_refinements(deployment: Deployment) -> None:
    name = trained(deployment, tolerance={"relative_bound": 1e-9})
    version = removed(deployment, name)
    assert version["kind"] == "adapted"
    assert version["certificate"]["relative"] <= 1e-9
    np.testing.assert_allclose(deployment.weights(name), fitted(X[20:300], Y[20:300]), atol=1e-4)


def test_an_example_added_and_removed_inside_one_range_cancels_out(deployment: Deployment) -> None:
    name = trained(deployment)
    before = deployment.weights(name)
    with deployment.worker_held():
        deployment.add_examples(name, 50 * X[300:310], 1 - Y[300:310], first=300, **TRAIN)
        deployment.remove(name, range(300, 310))
    deployment.settled(name)
    assert deployment.champion(name)["position"] == 320
    np.testing.assert_allclose(deployment.weights(name), before, atol=1e-9)
    assert deployment.datasets_agree(name)


def test_an_example_removed_and_added_again_counts_once(deployment: Deployment) -> None:
    name = trained(deployment)
    before = deployment.weights(name)
    with deployment.worker_held():
        deployment.remove(name, range(10))
        deployment.add_examples(name, X[:10], Y[:10], **TRAIN)
    deployment.settled(name)
    assert deployment.champion(name)["position"] == 320
    bound = deployment.champion(name)["certificate"]["bound"]
    assert np.linalg.norm(deployment.weights(name) - before) <= 2 * bound + 1e-6
    assert deployment.datasets_agree(name)


def test_holdout_examples_never_train(deployment: Deployment) -> None:
    name = trained(deployment)
    before = deployment.weights(name)
    deployment.add_examples(name, 50 * X[300:], 1 - Y[300:], first=300, split="holdout")
    deployment.adapted(name)
    np.testing.assert_allclose(deployment.weights(name), before, atol=1e-9)
    assert deployment.champion(name)["metrics"]["accuracy"] < 0.5
    deployment.ended(deployment.remove(name, range(300, 400))["job"])
    np.testing.assert_allclose(deployment.weights(name), before, atol=1e-9)
    assert deployment.champion(name)["metrics"] == {}
    assert deployment.champion(name)["position"] == 500


def test_versions_are_measured_on_the_same_sample_of_the_holdout(deployment: Deployment) -> None:
    name = trained(deployment, evaluation={"rows": 40})
    deployment.add_examples(name, X[300:], Y[300:], first=300, split="holdout")
    deployment.adapted(name)
    first = deployment.champion(name)["metrics"]
    assert first["rows"] == 40
    assert first["accuracy_se"] == pytest.approx((first["accuracy"] * (1 - first["accuracy"]) / 39) ** 0.5)
    rows = sample(deployment, name)
    deployment.ended(deployment.remove(name, range(5))["job"])
    assert sample(deployment, name) == rows
    assert deployment.champion(name)["metrics"]["rows"] == 40
    deployment.ended(deployment.post(f"/v1/models/{name}/retrains")["id"])
    [comparison] = deployment.get(f"/v1/models/{name}/comparisons")["items"]
    assert comparison["rows"] == 40
    assert comparison["accuracy"]["difference_se"] <= first["accuracy_se"]
    deployment.ended(deployment.remove(name, [position - 1 for position in rows[:10]])["job"])
    assert sample(deployment, name) == rows[10:]
    assert deployment.champion(name)["metrics"]["rows"] == 30


def test_without_a_holdout_a_comparison_is_made_on_a_sample_of_the_training_examples(deployment: Deployment) -> None:
    name = trained(deployment, evaluation={"rows": 40})
    deployment.ended(deployment.remove(name, range(5))["job"])
    deployment.ended(deployment.post(f"/v1/models/{name}/retrains")["id"])
    [comparison] = deployment.get(f"/v1/models/{name}/comparisons")["items"]
    assert comparison["rows"] == 40
    assert comparison["disagreement"] is not None
    assert "accuracy" not in comparison


def test_no_memory_contains_removed_examples(deployment: Deployment) -> None:
    name = trained(deployment, memory={"fraction": 0.5})
    remembered = deployment.state(name).memory.key.tolist()[:40]
    deployment.ended(deployment.remove(name, [position - 1 for position in remembered])["job"])
    assert not set(remembered) & set(deployment.state(name).memory.key.tolist())
    added(deployment, name)
    assert not set(remembered) & set(deployment.state(name).memory.key.tolist())
    # 130 of the 260 that are left, and some of the 100 new ones: at most half of all
    assert 130 < deployment.champion(name)["memory"]["size"] <= 180
