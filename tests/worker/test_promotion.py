"""Which version serves, and which one the next adaptation starts from."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from core.lifecycle.withdrawal import withdraw
from core.models import catalog
from core.versions.queries import tip_of
from tests.worker.deployment import Deployment, fitted, problem
from worker.jobs.retrain import take_over

TRAIN = {"split": "train"}
X, Y = problem(400)


def trained(deployment: Deployment, **policy: Any) -> str:
    """A model with a version for the first 200 examples."""
    name = deployment.new_model(policy=policy)
    deployment.add_examples(name, X[:200], Y[:200], **TRAIN)
    deployment.adapted(name)
    return name


def grown(deployment: Deployment, name: str, first: int, last: int) -> dict[str, Any]:
    """The version after more examples."""
    deployment.add_examples(name, X[first:last], Y[first:last], first=first, **TRAIN)
    return deployment.version(name, deployment.adapted(name)["version"])


def retrained(deployment: Deployment, name: str) -> dict[str, Any]:
    job = deployment.ended(deployment.post(f"/v1/models/{name}/retrains")["id"])
    assert job["state"] == "succeeded", job
    return deployment.version(name, job["version"])


def promote(deployment: Deployment, name: str, number: int) -> None:
    deployment.post(f"/v1/models/{name}/versions/{number}/promote")


def line(deployment: Deployment, name: str) -> list[tuple[int, int | None, int, str]]:
    """All versions: number, parent, position, state."""
    found = deployment.get(f"/v1/models/{name}/versions")["items"]
    return [(v["version"], v["parent"], v["position"], v["state"]) for v in reversed(found)]


def near(deployment: Deployment, name: str, first: int, last: int) -> bool:
    """Whether the champion is where a retrain on these examples would be."""
    distance = np.linalg.norm(deployment.weights(name) - fitted(X[first:last], Y[first:last]))
    return bool(distance <= deployment.champion(name)["certificate"]["bound"] + 1e-4)


def test_whoever_waited_for_a_job_is_answered_by_its_version(deployment: Deployment) -> None:
    """Though the service had just looked who is champion."""
    name = trained(deployment)
    for first in (200, 220, 240):
        deployment.post(f"/v1/models/{name}/predictions", {"inputs": X[:1].tolist()})
        deployment.add_examples(name, X[first : first + 20], Y[first : first + 20], first=first, **TRAIN)
        job = deployment.adapted(name)
        predicted = deployment.post(f"/v1/models/{name}/predictions", {"inputs": X[:1].tolist()})
        assert predicted["version"] == job["version"]


def test_an_automatic_policy_promotes_each_version(deployment: Deployment) -> None:
    name = trained(deployment)
    grown(deployment, name, 200, 250)
    assert line(deployment, name) == [(1, None, 200, "superseded"), (2, 1, 250, "champion")]
    promotions = deployment.get(f"/v1/models/{name}/promotions")["items"]
    assert [(p["version"], p["previous"], p["by"]) for p in promotions] == [(2, 1, "policy"), (1, None, "policy")]


def test_candidates_of_a_manual_policy_each_start_from_the_newest(deployment: Deployment) -> None:
    name = trained(deployment, promote="manual")
    grown(deployment, name, 200, 250)
    job = deployment.ended(deployment.remove(name, range(10))["job"])
    assert (job["from_position"], job["to_position"]) == (250, 260)
    states = [(1, None, 200, "candidate"), (2, 1, 250, "candidate"), (3, 2, 260, "candidate")]
    assert line(deployment, name) == states
    model = deployment.get(f"/v1/models/{name}")
    assert (model["champion"], model["pending"]) == (None, 260)
    promote(deployment, name, 3)
    assert near(deployment, name, 10, 250)
    assert deployment.get(f"/v1/models/{name}")["pending"] == 0


def test_after_a_rollback_the_next_adaptation_starts_from_there_and_misses_nothing(deployment: Deployment) -> None:
    name = trained(deployment)
    grown(deployment, name, 200, 250)
    promote(deployment, name, 1)
    deployment.post(f"/v1/models/{name}/resume")
    assert deployment.get(f"/v1/models/{name}")["pending"] == 50
    assert line(deployment, name)[-1][3] == "superseded"
    version = grown(deployment, name, 250, 300)
    assert (version["version"], version["parent"], version["position"], version["state"]) == (3, 1, 300, "champion")
    assert near(deployment, name, 0, 300)
    assert deployment.datasets_agree(name)


def test_resume_after_a_rollback_forgets_removed_examples_again(deployment: Deployment) -> None:
    name = trained(deployment)
    deployment.ended(deployment.remove(name, range(20))["job"])
    promote(deployment, name, 1)
    assert deployment.champion(name)["version"] == 1
    job = deployment.ended(deployment.post(f"/v1/models/{name}/resume")["job"])
    assert (job["from_position"], job["to_position"]) == (200, 220)
    assert deployment.get(f"/v1/models/{name}")["pending"] == 0
    assert near(deployment, name, 20, 200)
    assert deployment.datasets_agree(name)


def test_a_rollback_while_an_adaptation_runs_or_waits_is_not_lost(deployment: Deployment) -> None:
    name = trained(deployment, promote="manual")
    grown(deployment, name, 200, 250)
    with deployment.worker_held():
        deployment.add_examples(name, X[250:300], Y[250:300], first=250, **TRAIN)
        job = deployment.post(f"/v1/models/{name}/adaptations")
        assert job["from_position"] == 250
        promote(deployment, name, 1)
    job = deployment.ended(job["id"])
    assert (job["from_position"], job["to_position"]) == (200, 300)
    assert line(deployment, name)[-1] == (3, 1, 300, "candidate")
    assert deployment.get(f"/v1/models/{name}")["champion"] == 1


@pytest.mark.parametrize("kind", ["adaptations", "retrains"])
def test_nothing_to_do_changes_nothing(deployment: Deployment, kind: str) -> None:
    name = trained(deployment)
    job = deployment.ended(deployment.post(f"/v1/models/{name}/{kind}")["id"])
    assert job["state"] == "succeeded"
    assert deployment.get(f"/v1/models/{name}")["champion"] == 1
    if kind == "adaptations":
        assert (job["version"], len(line(deployment, name))) == (1, 1)


def test_a_retrain_within_tolerance_stays_a_candidate(deployment: Deployment) -> None:
    name = deployment.new_model()
    deployment.add_examples(name, X[:200], Y[:200])
    deployment.adapted(name)
    deployment.add_examples(name, X[200:], Y[200:], first=200)
    version = retrained(deployment, name)
    [comparison] = deployment.get(f"/v1/models/{name}/comparisons")["items"]
    assert (comparison["position"], comparison["adapted"], comparison["retrained"]) == (400, 2, 3)
    assert comparison["within_tolerance"]
    assert comparison["disagreement"] <= 0.01
    distance = np.linalg.norm(deployment.weights(name, 2) - deployment.weights(name, 3))
    assert comparison["weight_distance"] == pytest.approx(distance)
    assert (version["kind"], version["state"], deployment.champion(name)["version"]) == ("trained", "candidate", 2)


def outside(deployment: Deployment, **policy: Any) -> str:
    """A model with an adapted version that no retrain agrees with: it is never certified, and nothing is tolerated."""
    strict = {"certify": "never", "tolerance": {"relative_bound": 1e-12, "disagreement": 0}}
    name = trained(deployment, **strict, **policy)
    deployment.ended(deployment.remove(name, range(100))["job"])
    return name


@pytest.mark.parametrize("deployment", ["sqlite"], indirect=True)
def test_a_retrain_after_a_training_states_why_it_stays_a_candidate(deployment: Deployment) -> None:
    name = deployment.new_model()
    deployment.add_examples(name, X[:100], Y[:100])
    deployment.adapted(name)
    job = deployment.ended(deployment.post(f"/v1/models/{name}/retrains")["id"])
    assert job["message"].endswith("; version 1, which was trained on the same examples, stays in place."), job
    assert (job["version"], deployment.champion(name)["version"]) == (2, 1)


def test_a_retrain_outside_tolerance_is_promoted(deployment: Deployment) -> None:
    name = outside(deployment)
    version = retrained(deployment, name)
    [comparison] = deployment.get(f"/v1/models/{name}/comparisons")["items"]
    assert not comparison["within_tolerance"]
    assert (version["version"], version["state"], version["position"]) == (3, "champion", 300)
    np.testing.assert_allclose(deployment.weights(name), fitted(X[100:200], Y[100:200]), atol=1e-4)
    assert grown(deployment, name, 200, 250)["parent"] == 3


def judged(deployment: Deployment, name: str, sign: int) -> dict[str, Any]:
    """The retrain of a model with a holdout whose every row loses less (1) or more (-1) by it; the comparison."""
    towards = fitted(X[100:200], Y[100:200]) - deployment.weights(name)
    x = problem(100, seed=7)[0]
    y = (sign * (x @ towards[:-1] + towards[-1]) > 0).astype(int)
    deployment.add_examples(name, x, y, first=1000, split="holdout")
    retrained(deployment, name)
    [comparison] = deployment.get(f"/v1/models/{name}/comparisons")["items"]
    assert not comparison["within_tolerance"]
    assert comparison["rows"] == 100
    found: dict[str, Any] = comparison
    return found


def test_outside_tolerance_a_retrain_that_is_better_on_the_holdout_is_promoted(deployment: Deployment) -> None:
    name = outside(deployment)
    comparison = judged(deployment, name, 1)
    assert comparison["loss"]["retrained"] < comparison["loss"]["adapted"]
    assert (comparison["retrain_is_worse"], comparison["took_over"]) == (None, True)
    assert deployment.champion(name)["version"] == comparison["retrained"]


def test_outside_tolerance_a_retrain_that_is_worse_on_the_holdout_stays_a_candidate(deployment: Deployment) -> None:
    name = outside(deployment)
    comparison = judged(deployment, name, -1)
    loss = comparison["loss"]
    assert loss["retrained"] - loss["adapted"] > 2 * loss["difference_se"] > 0
    assert not comparison["took_over"]
    assert comparison["retrain_is_worse"].startswith("loss ")
    assert comparison["outcome"] == "the retrained version is worse on the holdout and stays a candidate"
    champion = deployment.champion(name)
    assert (champion["version"], champion["kind"]) == (comparison["adapted"], "adapted")
    assert deployment.version(name, comparison["retrained"])["state"] == "candidate"
    [job] = [job for job in deployment.settled(name) if job["kind"] == "retrain"]
    assert comparison["outcome"] in job["message"]
    # and adaptations go on from the adapted one
    assert grown(deployment, name, 200, 220)["parent"] == comparison["adapted"]


def test_with_a_manual_policy_it_waits_and_later_candidates_start_from_it(deployment: Deployment) -> None:
    name = outside(deployment, promote="manual")
    promote(deployment, name, 2)
    assert retrained(deployment, name)["state"] == "candidate"
    assert grown(deployment, name, 200, 250)["parent"] == 3
    assert deployment.champion(name)["version"] == 2


def test_the_first_retrain_of_a_model_trains_it(deployment: Deployment) -> None:
    name = deployment.new_model()
    deployment.add_examples(name, X, Y, **TRAIN)
    version = retrained(deployment, name)
    assert (version["version"], version["state"], version["position"]) == (1, "champion", 400)
    assert near(deployment, name, 0, 400)


def test_a_retrain_that_ends_after_a_withdrawal_brings_nothing_back(deployment: Deployment) -> None:
    name = trained(deployment)
    with deployment.database.write() as session:
        model = catalog.find(session, name, None, lock=True)
        before = tip_of(session, model)
        assert before is not None
        withdraw(session, model)
        words = take_over(session, model, before, before)
        assert (model.champion, model.tip) == (None, None)
    assert "stays a candidate" in words
    deployment.settled(name)  # there are examples again: a job trains it anew
    assert line(deployment, name) == [(1, None, 200, "superseded"), (2, None, 200, "champion")]
