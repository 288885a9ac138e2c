"""What is deleted later: versions that a policy keeps for a while, and examples that were plainly removed."""

from __future__ import annotations

import time
from datetime import datetime, timedelta

import numpy as np

from core.database import now
from core.models import catalog
from core.versions.tables import Version
from tests.worker.house import House, fitted, problem
from tests.worker.people import PERSON, erased, filled_rows, known, near, rows, states
from tests.worker.test_failures import POISON, curve, store


def promoting(house: House, name: str, version: int) -> tuple[int, str | None]:
    """What comes of promoting a version."""
    with house.client() as client:
        answer = client.post(f"/v1/models/{name}/versions/{version}/promote")
    return answer.status_code, answer.json().get("code")


def file_of(house: House, name: str, version: int) -> str:
    with house.database.read() as session:
        model = catalog.find(session, name, None)
        return session.get_one(Version, (model.id, version)).file


def test_a_version_that_knew_the_person_is_kept_as_long_as_the_policy_says(house: House) -> None:
    name, person, *_ = known(house, policy={"erasure": {"keep_superseded": "3s"}})
    file = file_of(house, name, 1)
    receipt = erased(house, person)
    [part] = receipt["models"]
    until = datetime.fromisoformat(part["kept_until"])
    assert now() - timedelta(seconds=3) < until < now() + timedelta(seconds=3)
    assert part["deleted"]["versions"] == 0
    assert part["deleted"]["examples"] == PERSON
    assert states(house, name)[1] == "superseded"
    assert promoting(house, name, 1) == (409, "version_erased")
    house.wait_until(lambda: states(house, name)[1] == "purged", 20)
    assert now() >= until
    house.wait_until(lambda: not (house.folder / "home" / "artifacts" / file).exists(), 10)
    assert promoting(house, name, 1) == (409, "version_purged")
    assert house.champion(name)["version"] == part["version"]
    house.settled(name)
    assert house.get("/v1/receipts/verify")["valid"]


def test_a_second_erasure_does_not_lengthen_the_time_of_a_kept_version(house: House) -> None:
    name, person, x, y = known(house, policy={"erasure": {"keep_superseded": "1h"}})
    house.add_examples(name, x[:5], y[:5], first=1000, split="train", subject=f"other of {name}")
    house.adapted(name)
    first = erased(house, person)["models"][0]["kept_until"]
    second = erased(house, f"other of {name}")["models"][0]["kept_until"]
    assert second >= first
    with house.database.read() as session:
        model = catalog.find(session, name, None)
        kept = session.get_one(Version, (model.id, 1)).purge_at
    assert kept is not None
    assert kept <= datetime.fromisoformat(first)


def test_removed_examples_are_deleted_once_no_version_has_to_forget_them(house: House) -> None:
    name, (x, y) = house.new_model(), problem(300)
    house.add_examples(name, x, y, split="train")
    house.adapted(name)
    house.ended(house.remove(name, range(30))["job"])
    house.wait_until(lambda: rows(house, name) == list(range(31, 301)), 10)
    house.settled(name)
    assert states(house, name) == {1: "superseded", 2: "champion"}
    # the version before can still be promoted, and the way from it to the head is a retrain
    assert promoting(house, name, 1)[0] == 200
    job = house.ended(house.post(f"/v1/models/{name}/resume")["job"])
    assert (job["kind"], job["state"]) == ("adapt", "succeeded"), job
    assert "purged" in job["message"], job["message"]
    version = house.champion(name)
    assert (version["kind"], version["position"]) == ("trained", 330)
    np.testing.assert_allclose(house.weights(name), fitted(x[30:], y[30:]), atol=1e-4)


def test_removed_examples_stay_while_the_champion_has_not_forgotten_them(house: House) -> None:
    name, (x, y) = house.new_model(policy={"promote": "manual"}), problem(100)
    house.add_examples(name, x, y, split="train")
    house.adapted(name)
    house.post(f"/v1/models/{name}/versions/1/promote")
    house.ended(house.remove(name, range(10))["job"])
    time.sleep(1.5)  # some ticks
    assert len(rows(house, name)) == 100
    house.post(f"/v1/models/{name}/versions/2/promote")
    house.wait_until(lambda: len(rows(house, name)) == 90, 10)


def test_deleting_removed_examples_adapts_nothing(house: House) -> None:
    name, (x, y) = house.new_model(), problem(120)
    house.add_examples(name, x[:100], y[:100], split="train")
    house.adapted(name)
    removal = house.remove(name, range(10))["job"]
    house.ended(removal)
    house.add_examples(name, x[100:], y[100:], first=100, split="train")
    house.wait_until(lambda: len(rows(house, name)) == 110, 10)
    house.settled(name)
    assert house.champion(name)["position"] == 110, "the policy says that nothing is adapted by itself"


def test_deleting_removed_examples_is_not_kept_from_it_by_an_adaptation_that_fails(house: House) -> None:
    name = house.new_model(input={"kind": "vector", "dim": 1}, architecture={"kind": "linear", "degree": 10})
    x, y = curve(200)
    house.add_examples(name, x, y, split="train")
    house.adapted(name)
    with house.worker_held():
        house.post(f"/v1/models/{name}/adaptations")
        job = house.remove(name, range(10))["job"]
    house.ended(job)
    store(house, name, POISON, np.array([1]), 200, "train")
    house.wait_until(lambda: len(rows(house, name)) == 191, 10)
    time.sleep(2)
    assert len(house.get(f"/v1/jobs?model={name}&kind=erase")["items"]) <= 2


def test_removed_examples_of_a_model_that_was_never_trained_are_deleted_too(house: House) -> None:
    name, (x, y) = house.new_model(), problem(20)
    house.add_examples(name, x, y, split="train")
    house.remove(name, range(5))
    house.wait_until(lambda: len(rows(house, name)) == 15, 10)


def test_a_person_whose_examples_were_removed_and_deleted_is_still_purged_from_versions(house: House) -> None:
    name, person, x, y = known(house)
    house.ended(house.post(f"/v1/models/{name}/removals", {"subjects": [person]})["job"])
    house.wait_until(lambda: len(filled_rows(house, name)) == 280, 10)
    house.settled(name)
    receipt = erased(house, person)
    assert states(house, name)[1] == "purged", "its weights knew the person, and it can be promoted"
    assert rows(house, name) == list(range(PERSON + 1, 301))
    assert near(house, receipt["models"][0], x[PERSON:], y[PERSON:])


def test_a_version_that_knew_removed_people_can_be_promoted_and_left_again(house: House) -> None:
    name, person, x, y = known(house)
    house.ended(house.post(f"/v1/models/{name}/removals", {"subjects": [person]})["job"])
    house.wait_until(lambda: len(filled_rows(house, name)) == 280, 10)
    house.settled(name)
    assert promoting(house, name, 1)[0] == 200
    job = house.ended(house.post(f"/v1/models/{name}/resume")["job"])
    assert (job["kind"], job["state"]) == ("adapt", "succeeded"), job
    assert "purged" in job["message"], job["message"]
    np.testing.assert_allclose(house.weights(name), fitted(x[PERSON:], y[PERSON:]), atol=1e-4)
