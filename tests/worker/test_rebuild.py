"""Returning to a version whose weights were deleted: the model is trained at its position, without what is gone."""

from __future__ import annotations

import numpy as np

from core.models import catalog
from tests.worker.deployment import Deployment, fitted, problem
from tests.worker.erasure_helpers import PERSON, ask, erase, rows, states, train_with_person, wait_for_end

MORE_X, MORE_Y = problem(60, seed=1)


def promoted(deployment: Deployment, name: str, number: int) -> dict[str, object]:
    """Promote a purged version; the job that rebuilt it."""
    with deployment.client() as client:
        response = client.post(f"/v1/models/{name}/versions/{number}/promote")
    assert response.status_code == 202, response.text
    return deployment.ended(response.json()["job"])


def test_a_rollback_past_an_erasure_trains_without_the_person(deployment: Deployment) -> None:
    name, person, x, y = train_with_person(deployment)
    friend = f"friend of {name}"
    deployment.add_examples(name, MORE_X[:40], MORE_Y[:40], first=1000, split="train", subject=friend)
    deployment.adapted(name)
    deployment.ended(deployment.remove(name, range(290, 300))["job"])
    erase(deployment, person)
    deployment.settled(name)
    assert states(deployment, name) == {1: "purged", 2: "purged", 3: "purged", 4: "champion"}

    job = promoted(deployment, name, 1)
    assert (job["state"], job["version"], job["to_position"]) == ("succeeded", 5, 300), job
    assert job["message"] == (
        "Version 5 replaces the purged version 1: trained at position 300 on 270 examples, without 30 removed since; "
        "rolled back."
    )
    rebuilt, model = deployment.champion(name), deployment.get(f"/v1/models/{name}")
    assert (rebuilt["version"], rebuilt["kind"], rebuilt["position"]) == (5, "trained", 300)
    assert rebuilt["removals_position"] == model["head"]
    assert (rebuilt["gate"]["action"], model["held"]["reason"]) == ("warn", "version 5 was promoted by hand")
    np.testing.assert_allclose(deployment.weights(name), fitted(x[PERSON:290], y[PERSON:290]), atol=1e-4)
    assert deployment.datasets_agree(name)
    promotion = deployment.get(f"/v1/models/{name}/promotions")["items"][0]
    assert (promotion["version"], promotion["by"]) == (5, deployment.admin_key.split("_")[1])

    # removals and erasures go on while the model is held
    deployment.remove(name, [280])
    erase(deployment, friend)
    assert deployment.champion(name)["version"] == 5, "the friend's examples are not in it"
    assert deployment.post(f"/v1/models/{name}/resume")["job"] is not None
    deployment.settled(name)
    champion = deployment.champion(name)
    assert champion["kind"] == "adapted"
    left = [*range(PERSON, 280), *range(281, 290)]
    truth = fitted(x[left], y[left])
    assert np.linalg.norm(deployment.weights(name) - truth) <= champion["certificate"]["bound"] + 1e-4
    assert deployment.datasets_agree(name)
    deployment.wait_until(lambda: rows(deployment, name) == [i + 1 for i in left])


def test_the_policy_deletes_weights_and_a_rollback_brings_them_back(deployment: Deployment) -> None:
    name, (x, y) = deployment.new_model(policy={"versions": {"keep": 1, "every": None}}), problem(120)
    for i in range(4):
        part = slice(30 * i, 30 * i + 30)
        deployment.add_examples(name, x[part], y[part], first=30 * i, split="train")
        deployment.adapted(name)
    expected = {1: "superseded", 2: "purged", 3: "purged", 4: "champion"}
    deployment.wait_until(lambda: states(deployment, name) == expected)
    folder = deployment.folder / "home" / "artifacts" / "models"
    with deployment.database.read() as session:
        place = folder / str(catalog.find(session, name, None).id)
    deployment.wait_until(lambda: len(list(place.iterdir())) == 2)
    second = deployment.version(name, 2)
    assert second["cost"]["seconds"] > 0
    assert second["certificate"] is not None
    assert second["sha256"] is not None
    assert promoted(deployment, name, 2)["version"] == 5
    np.testing.assert_allclose(deployment.weights(name), fitted(x[:60], y[:60]), atol=1e-4)


def test_a_job_leaves_out_people_whose_request_came_before_it_started(deployment: Deployment) -> None:
    name, person, x, y = train_with_person(deployment)
    friend = f"friend of {name}"
    deployment.add_examples(name, MORE_X, MORE_Y, first=1000, split="train", subject=friend)
    deployment.adapted(name)
    deployment.add_examples(name, MORE_X[:5], MORE_Y[:5], first=2000, split="train")
    deployment.adapted(name)
    erase(deployment, person)
    with deployment.worker_held():
        job = deployment.post(f"/v1/models/{name}/versions/2/promote")["job"]
        erasure = ask(deployment, friend)
    assert deployment.ended(job)["state"] == "succeeded"
    assert wait_for_end(deployment, erasure)["state"] == "completed"
    deployment.settled(name)
    model = deployment.get(f"/v1/models/{name}")
    assert model["held"] is not None
    champion = deployment.champion(name)
    rest = 5 if champion["position"] > 360 else 0  # the erasure may have been verified first, at the head
    x, y = np.concatenate([x[PERSON:], MORE_X[:rest]]), np.concatenate([y[PERSON:], MORE_Y[:rest]])
    bound = (champion["certificate"] or {}).get("bound") or 0
    assert np.linalg.norm(deployment.weights(name) - fitted(x, y)) <= bound + 1e-3
    left = [state for number, state in states(deployment, name).items() if number <= 3]
    assert left == ["purged"] * 3
