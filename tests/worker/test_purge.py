"""What is deleted later: versions that a policy keeps for a while, and examples that were plainly removed."""

from __future__ import annotations

from datetime import datetime, timedelta

import numpy as np

from core.clock import now
from core.models import catalog
from core.tables.versions import Version
from tests.worker.deployment import Deployment, fitted, problem
from tests.worker.erasure_helpers import PERSON, erase, filled_rows, near, rows, states, train_with_person
from tests.worker.test_failures import POISON, curve, store


def promoting(deployment: Deployment, name: str, version: int) -> tuple[int, str | None]:
    """What comes of promoting a version."""
    with deployment.client() as client:
        answer = client.post(f"/v1/models/{name}/versions/{version}/promote")
    return answer.status_code, answer.json().get("code")


def file_of(deployment: Deployment, name: str, version: int) -> str:
    with deployment.database.read() as session:
        model = catalog.find(session, name, None)
        return session.get_one(Version, (model.id, version)).file


def test_a_version_trained_on_an_erased_person_is_kept_as_long_as_the_policy_says(deployment: Deployment) -> None:
    name, person, *_ = train_with_person(deployment, policy={"erasure": {"keep_superseded": "3s"}})
    file = file_of(deployment, name, 1)
    receipt = erase(deployment, person)
    [part] = receipt["models"]
    until = datetime.fromisoformat(part["kept_until"])
    assert now() - timedelta(seconds=3) < until < now() + timedelta(seconds=3)
    assert part["deleted"]["versions"] == 0
    assert part["deleted"]["examples"] == PERSON
    assert states(deployment, name)[1] == "superseded"
    deployment.wait_until(lambda: states(deployment, name)[1] == "purged", 20)
    assert now() >= until
    deployment.wait_until(lambda: not (deployment.folder / "home" / "artifacts" / file).exists(), 10)
    assert deployment.champion(name)["version"] == part["version"]
    deployment.settled(name)
    assert deployment.get("/v1/receipts/verify")["valid"]
    messages = {job["message"] for job in deployment.get(f"/v1/jobs?model={name}&kind=erase")["items"]}
    assert "Versions purged whose retention period had ended." in messages
    trail = deployment.get(f"/v1/erasures/{receipt['erasure']}")["trail"]
    assert [(entry["action"], entry["by"]) for entry in trail[1:]] == [("completed", "amend"), ("purged", "amend")]


def test_a_second_erasure_does_not_lengthen_the_time_of_a_kept_version(deployment: Deployment) -> None:
    name, person, x, y = train_with_person(deployment, policy={"erasure": {"keep_superseded": "1h"}})
    deployment.add_examples(name, x[:5], y[:5], first=1000, split="train", subject=f"other of {name}")
    deployment.adapted(name)
    first = erase(deployment, person)["models"][0]["kept_until"]
    second = erase(deployment, f"other of {name}")["models"][0]["kept_until"]
    assert second >= first
    with deployment.database.read() as session:
        model = catalog.find(session, name, None)
        kept = session.get_one(Version, (model.id, 1)).purge_at
    assert kept is not None
    assert kept <= datetime.fromisoformat(first)


def test_removed_examples_are_deleted_once_no_version_has_to_forget_them(deployment: Deployment) -> None:
    name, (x, y) = deployment.new_model(), problem(300)
    deployment.add_examples(name, x, y, split="train")
    deployment.adapted(name)
    deployment.ended(deployment.remove(name, range(30))["job"])
    deployment.wait_until(lambda: rows(deployment, name) == list(range(31, 301)), 10)
    deployment.settled(name)
    assert states(deployment, name) == {1: "superseded", 2: "champion"}
    # the version before can still be promoted, and the way from it to the head is a retrain
    assert promoting(deployment, name, 1)[0] == 200
    job = deployment.ended(deployment.post(f"/v1/models/{name}/resume")["job"])
    assert (job["kind"], job["state"]) == ("adapt", "succeeded"), job
    assert "purged" in job["message"], job["message"]
    version = deployment.champion(name)
    assert (version["kind"], version["position"]) == ("trained", 330)
    np.testing.assert_allclose(deployment.weights(name), fitted(x[30:], y[30:]), atol=1e-4)


def test_removed_examples_stay_while_the_champion_has_not_forgotten_them(deployment: Deployment) -> None:
    name, (x, y) = deployment.new_model(policy={"promote": "manual"}), problem(100)
    deployment.add_examples(name, x, y, split="train")
    deployment.adapted(name)
    deployment.post(f"/v1/models/{name}/versions/1/promote")
    deployment.ended(deployment.remove(name, range(10))["job"])
    deployment.wait_for_ticks()
    assert len(rows(deployment, name)) == 100
    deployment.post(f"/v1/models/{name}/versions/2/promote")
    deployment.wait_until(lambda: len(rows(deployment, name)) == 90, 10)


def test_deleting_removed_examples_adapts_nothing(deployment: Deployment) -> None:
    name, (x, y) = deployment.new_model(), problem(120)
    deployment.add_examples(name, x[:100], y[:100], split="train")
    deployment.adapted(name)
    removal = deployment.remove(name, range(10))["job"]
    deployment.ended(removal)
    deployment.add_examples(name, x[100:], y[100:], first=100, split="train")
    deployment.wait_until(lambda: len(rows(deployment, name)) == 110, 10)
    deployment.settled(name)
    assert deployment.champion(name)["position"] == 110, "the policy says that nothing is adapted by itself"
    [job] = deployment.get(f"/v1/jobs?model={name}&kind=erase")["items"]
    assert job["message"] == "Removed and replaced examples deleted."


def test_deleting_removed_examples_is_not_kept_from_it_by_an_adaptation_that_fails(deployment: Deployment) -> None:
    name = deployment.new_model(input={"kind": "vector", "dim": 1}, architecture={"kind": "linear", "degree": 10})
    x, y = curve(200)
    deployment.add_examples(name, x, y, split="train")
    deployment.adapted(name)
    with deployment.worker_held():
        deployment.post(f"/v1/models/{name}/adaptations")
        job = deployment.remove(name, range(10))["job"]
    deployment.ended(job)
    store(deployment, name, POISON, np.array([1]), 200, "train")
    deployment.wait_until(lambda: len(rows(deployment, name)) == 191, 10)
    deployment.wait_for_ticks()
    deployment.settled(name)
    deployment.wait_for_ticks()
    assert len(deployment.get(f"/v1/jobs?model={name}&kind=erase")["items"]) <= 2


def test_removed_examples_of_a_model_that_was_never_trained_are_deleted_too(deployment: Deployment) -> None:
    name, (x, y) = deployment.new_model(), problem(20)
    deployment.add_examples(name, x, y, split="train")
    deployment.remove(name, range(5))
    deployment.wait_until(lambda: len(rows(deployment, name)) == 15, 10)


def test_a_person_whose_examples_were_removed_and_deleted_is_still_purged_from_versions(deployment: Deployment) -> None:
    name, person, x, y = train_with_person(deployment)
    deployment.ended(deployment.post(f"/v1/models/{name}/removals", {"subjects": [person]})["job"])
    deployment.wait_until(lambda: len(filled_rows(deployment, name)) == 280, 10)
    deployment.settled(name)
    receipt = erase(deployment, person)
    assert states(deployment, name)[1] == "purged", "its weights knew the person, and it can be promoted"
    assert rows(deployment, name) == list(range(PERSON + 1, 301))
    assert near(deployment, receipt["models"][0], x[PERSON:], y[PERSON:])


def test_a_version_trained_on_removed_examples_can_be_promoted_and_replaced(deployment: Deployment) -> None:
    name, person, x, y = train_with_person(deployment)
    deployment.ended(deployment.post(f"/v1/models/{name}/removals", {"subjects": [person]})["job"])
    deployment.wait_until(lambda: len(filled_rows(deployment, name)) == 280, 10)
    deployment.settled(name)
    assert promoting(deployment, name, 1)[0] == 200
    job = deployment.ended(deployment.post(f"/v1/models/{name}/resume")["job"])
    assert (job["kind"], job["state"]) == ("adapt", "succeeded"), job
    assert "purged" in job["message"], job["message"]
    np.testing.assert_allclose(deployment.weights(name), fitted(x[PERSON:], y[PERSON:]), atol=1e-4)
