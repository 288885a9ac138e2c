"""A held model among running workers and schedulers: it stays where it was put, and nothing is lost."""

from __future__ import annotations

from typing import Any

import numpy as np

from tests.worker.deployment import Deployment, fitted, problem
from tests.worker.erasure_helpers import PERSON, erase, states, train_with_person

TRAIN = {"split": "train"}
EAGER = {"adapt": {"after_changes": 1, "every": None}}
X, Y = problem(400)


def rolled_back(deployment: Deployment, **policy: Any) -> str:
    """A model whose first version, of 200 examples, serves again; the second has 50 more."""
    name = deployment.new_model(policy=policy)
    deployment.add_examples(name, X[:200], Y[:200], **TRAIN)
    deployment.adapted(name)
    deployment.add_examples(name, X[200:250], Y[200:250], first=200, **TRAIN)
    deployment.adapted(name)
    deployment.post(f"/v1/models/{name}/versions/1/promote")
    return name


def patch(deployment: Deployment, name: str, policy: dict[str, Any]) -> None:
    with deployment.client() as client:
        client.patch(f"/v1/models/{name}", json={"policy": policy}).raise_for_status()


def test_a_rolled_back_model_is_not_adapted_by_the_schedule_until_it_is_resumed(deployment: Deployment) -> None:
    name, other = rolled_back(deployment), rolled_back(deployment)
    patch(deployment, name, EAGER)
    deployment.post(f"/v1/models/{other}/resume")
    patch(deployment, other, EAGER)
    # the scheduler has looked at both by the time it has adapted this one
    deployment.wait_until(lambda: deployment.get(f"/v1/models/{other}")["pending"] == 0)
    assert len(deployment.settled(name)) == 2
    assert deployment.champion(name)["version"] == 1
    deployment.ended(deployment.post(f"/v1/models/{name}/resume")["job"])
    champion = deployment.champion(name)
    assert (champion["parent"], champion["position"]) == (1, 250)
    for one in (name, other):
        patch(deployment, one, {"adapt": {"after_changes": None}})


def test_an_adaptation_by_hand_makes_a_candidate_and_resume_promotes_it(deployment: Deployment) -> None:
    name = rolled_back(deployment)
    job = deployment.adapted(name)
    assert job["message"].endswith("; not promoted: the model is held.")
    made = deployment.version(name, job["version"])
    assert (made["parent"], made["position"], made["state"]) == (1, 250, "candidate")
    assert deployment.champion(name)["version"] == 1
    resumed = deployment.ended(deployment.post(f"/v1/models/{name}/resume")["job"])
    assert (resumed["version"], resumed["message"]) == (3, "Version 3 already covers all changes; promoted.")
    assert deployment.champion(name)["version"] == 3
    assert len(deployment.get(f"/v1/models/{name}/versions")["items"]) == 3


def test_a_retrain_by_hand_makes_candidates(deployment: Deployment) -> None:
    name = rolled_back(deployment, certify="never", tolerance={"relative_bound": 1e-12, "disagreement": 0})
    job = deployment.ended(deployment.post(f"/v1/models/{name}/retrains")["id"])
    assert job["message"].endswith("; not promoted: the model is held.")
    assert states(deployment, name) == {1: "champion", 2: "superseded", 3: "candidate", 4: "candidate"}
    [comparison] = deployment.get(f"/v1/models/{name}/comparisons")["items"]
    assert (comparison["adapted"], comparison["retrained"], comparison["took_over"]) == (3, 4, True)


def test_what_was_removed_meanwhile_is_forgotten_after_resume(deployment: Deployment) -> None:
    name = rolled_back(deployment)
    removal = deployment.remove(name, range(20))
    assert removal["job"] is None
    job = deployment.ended(deployment.post(f"/v1/models/{name}/resume")["job"])
    assert deployment.get(f"/v1/models/{name}/removals/{removal['id']}")["job"] == job["id"]
    champion = deployment.champion(name)
    distance = np.linalg.norm(deployment.weights(name) - fitted(X[20:250], Y[20:250]))
    assert distance <= champion["certificate"]["bound"] + 1e-4
    assert deployment.datasets_agree(name)


def test_an_erasure_runs_on_a_held_model_and_the_hold_mentions_it(deployment: Deployment) -> None:
    name, person, x, y = train_with_person(deployment)
    deployment.add_examples(name, X[:20], Y[:20], first=1000, **TRAIN)
    deployment.adapted(name)
    deployment.post(f"/v1/models/{name}/versions/1/promote")
    erase(deployment, person)
    model = deployment.get(f"/v1/models/{name}")
    assert model["champion"] == 3
    assert model["held"]["reason"] == "version 1 was promoted by hand; version 3 was promoted by an erasure"
    assert states(deployment, name) == {1: "purged", 2: "purged", 3: "champion"}
    truth = fitted(np.concatenate([x[PERSON:], X[:20]]), np.concatenate([y[PERSON:], Y[:20]]))
    assert np.linalg.norm(deployment.weights(name) - truth) <= deployment.champion(name)["certificate"]["bound"] + 1e-4
    assert deployment.post(f"/v1/models/{name}/resume")["job"] is None
