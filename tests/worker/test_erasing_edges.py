"""Erasures where little is left, where something is in the way, or where something else happens at the same time."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import numpy as np
import pytest
from sqlalchemy import select

from core.database import now
from core.jobs.tables import Job, JobKind, JobState
from tests.worker.house import House, fitted, problem
from tests.worker.people import PERSON, ask, ended, erased, known, near, rows, states
from tests.worker.test_failures import POISON, curve, store
from tests.worker.test_overtaking import DEGREE, DIM, N, filled, held
from tests.worker.truth import TARGETS, examples_of, fit


def code(house: House, method: str, path: str, body: Any = None) -> tuple[int, str | None]:
    """The status of an answer, and its code if it is a problem."""
    with house.client() as client:
        answer = client.request(method, path, json=body)
    return answer.status_code, answer.json().get("code") if answer.content else None


def test_a_model_without_any_example_left_answers_nothing_and_can_be_trained_anew(house: House) -> None:
    name, (x, y) = house.new_model(), problem(50)
    house.add_examples(name, x, y, split="train", subject=f"all of {name}")
    house.adapted(name)
    [part] = erased(house, f"all of {name}")["models"]
    assert part["method"] == "withdrawn"
    assert house.get(f"/v1/models/{name}")["champion"] is None
    asked = {"inputs": [x[0].tolist()]}
    house.wait_until(lambda: code(house, "POST", f"/v1/models/{name}/predictions", asked) == (409, "champion_missing"))
    assert set(states(house, name).values()) == {"purged"}
    assert rows(house, name) == []
    house.add_examples(name, x, y, first=100, split="train")
    assert house.adapted(name)["state"] == "succeeded"
    version = house.champion(name)
    assert (version["kind"], version["position"]) == ("trained", 150)
    np.testing.assert_allclose(house.weights(name), fitted(x, y), atol=1e-4)


def test_a_model_with_only_its_holdout_left_answers_nothing(house: House) -> None:
    name, (x, y) = house.new_model(), problem(80)
    house.add_examples(name, x[:50], y[:50], split="train", subject=f"all of {name}")
    house.add_examples(name, x[50:], y[50:], first=50, split="holdout")
    house.adapted(name)
    assert erased(house, f"all of {name}")["models"][0]["method"] == "withdrawn"
    assert house.get(f"/v1/models/{name}")["champion"] is None
    assert len(rows(house, name)) == 30


def test_the_last_example_of_a_class_is_forgotten(house: House) -> None:
    name = house.new_model(target=TARGETS["classes"])
    x, y = examples_of("classes", 300)
    last = y == 2
    house.add_examples(name, x[last], y[last], split="train", subject=f"class of {name}")
    house.add_examples(name, x[~last], y[~last], first=1000, split="train")
    house.adapted(name)
    [part] = erased(house, f"class of {name}")["models"]
    # without a penalty its bias has no optimum: nobody can be near that, but the others are as they would be
    inputs = {"inputs": x[~last][:50].tolist()}
    outputs = house.post(f"/v1/models/{name}/predictions", inputs)["outputs"]
    w = fit("binary", x[~last], y[~last], 0.5)
    chance = 1 / (1 + np.exp(-(x[~last][:50] @ w[:-1] + w[-1])))
    found = np.array([o["probabilities"]["1"] for o in outputs])
    assert max(o["probabilities"]["2"] for o in outputs) < 0.02, part
    np.testing.assert_allclose(found, chance, atol=0.05)


def test_all_of_the_memory_is_forgotten_at_once(house: House) -> None:
    name, (x, y) = house.new_model(policy={"memory": {"fraction": 0.05}}), problem(300)
    house.add_examples(name, x, y, split="train")
    house.adapted(name)
    remembered = set(house.state(name).memory.key.tolist())
    assert 0 < len(remembered) < 100
    # the same examples, in the same order, so that the same are remembered; now they are about somebody
    twin, person = house.new_model(policy={"memory": {"fraction": 0.05}}), f"memory of {name}"
    bodies = [
        {"id": f"e{i}", "x": x[i].tolist(), "y": int(y[i]), "split": "train"}
        | ({"subject": person} if i + 1 in remembered else {})
        for i in range(300)
    ]
    house.post(f"/v1/models/{twin}/examples", {"examples": bodies})
    house.adapted(twin)
    assert set(house.state(twin).memory.key.tolist()) == remembered
    [part] = erased(house, person)["models"]
    others = [i for i in range(300) if i + 1 not in remembered]
    assert part["examples"] == len(remembered)
    assert near(house, part, x[others], y[others])
    house.remove(twin, others[:10])  # it has a new memory, and goes on from there
    house.settled(twin)
    version = house.champion(twin)
    assert (version["kind"], version["certificate"]["relative"] <= 0.01) == ("adapted", True)


def test_a_person_who_came_seconds_ago_is_forgotten(house: House) -> None:
    name, (x, y) = house.new_model(), problem(220)
    house.add_examples(name, x[:200], y[:200], split="train")
    house.adapted(name)
    house.add_examples(name, x[200:], y[200:], first=200, split="train", subject=f"new to {name}")
    [part] = erased(house, f"new to {name}")["models"]
    assert part["deleted"]["examples"] == 20
    assert states(house, name)[1] == "superseded"  # it never knew the person
    assert near(house, part, x[:200], y[:200])


def test_a_person_who_came_before_the_first_training_is_forgotten_and_nothing_is_trained(house: House) -> None:
    name, (x, y) = house.new_model(), problem(220)
    house.add_examples(name, x[:20], y[:20], split="train", subject=f"first of {name}")
    house.add_examples(name, x[20:], y[20:], first=20, split="train")
    receipt = erased(house, f"first of {name}")
    assert receipt["models"][0]["deleted"]["examples"] == 20
    assert states(house, name) == {}
    assert len(rows(house, name)) == 200
    house.adapted(name)
    np.testing.assert_allclose(house.weights(name), fitted(x[20:], y[20:]), atol=1e-4)


def test_a_retrain_that_runs_meanwhile_does_not_bring_the_person_back(house: House) -> None:
    name, person = filled(house, subject="person of a retrain"), "person of a retrain"
    house.adapted(name)
    house.ended(house.remove(name, range(100, 120))["job"])
    with held(house, name, "retrains") as retrain:
        erasure = ended(house, ask(house, person))
        assert erasure["state"] == "completed", erasure
    assert house.ended(retrain["id"])["state"] == "succeeded"
    house.settled(name)
    assert all(
        house.version(name, n)["position"] >= N + 20 + 40 for n, s in states(house, name).items() if s != "purged"
    )
    x, y = problem(N, dim=DIM)
    kept = [*range(40, 100), *range(120, N)]
    truth = fit("binary", x[kept] / 3, y[kept], 1.0, DEGREE)
    assert np.linalg.norm(house.weights(name) - truth) <= 0.01 * np.linalg.norm(truth)


def test_an_erasure_whose_adaptation_fails_says_why_and_can_be_tried_again(house: House) -> None:
    name = house.new_model(input={"kind": "vector", "dim": 1}, architecture={"kind": "linear", "degree": 10})
    x, y = curve(200)
    house.add_examples(name, x[:20], y[:20], split="train", subject=f"person of {name}")
    house.add_examples(name, x[20:], y[20:], first=20, split="train")
    house.adapted(name)
    store(house, name, POISON, np.array([1]), 200, "train")
    id = ask(house, f"person of {name}")
    erasure = ended(house, id)
    assert (erasure["state"], erasure["receipt"]) == ("failed", None)
    error = erasure["models"][0]["error"]
    assert error["code"] == "solver_failed"
    assert "check the examples" in error["detail"]
    assert "the example at position 201: remove it" in error["detail"]
    assert house.champion(name)["version"] == 1
    jobs = len(house.get(f"/v1/jobs?model={name}")["items"])
    house.settled(name)
    with house.worker_held():  # the job that deletes what was removed would take it up again before us
        house.remove(name, [200])
        house.post(f"/v1/erasures/{id}/retry")
    erasure = ended(house, id)
    assert erasure["state"] == "completed", erasure
    assert states(house, name)[1] == "purged"
    assert len(rows(house, name)) == 180
    assert jobs < 10


def test_the_job_that_erases_cannot_be_cancelled(house: House) -> None:
    name, person, *_ = known(house)
    with house.worker_held():
        id = ask(house, person)
        [job] = [j for j in house.get(f"/v1/jobs?model={name}&kind=erase")["items"] if j["state"] == "queued"]
        assert code(house, "POST", f"/v1/jobs/{job['id']}/cancel") == (409, "job_required")
    assert ended(house, id, 20)["state"] == "completed"


def test_an_erasure_goes_on_when_its_adaptation_is_cancelled_and_asked_for_again(house: House) -> None:
    name, person, *_ = known(house)
    with house.worker_held():
        adaptation = house.post(f"/v1/models/{name}/adaptations")["id"]
        id = ask(house, person)
        house.post(f"/v1/jobs/{adaptation}/cancel")
    if ended(house, id, 20)["state"] == "failed":
        house.post(f"/v1/erasures/{id}/retry")
    assert ended(house, id, 20)["state"] == "completed"


def test_a_model_that_is_deleted_meanwhile_has_forgotten_the_person(house: House) -> None:
    person, (x, y) = "a person of a model that is deleted", problem(100)
    names = [house.new_model() for _ in range(2)]
    for name in names:
        house.add_examples(name, x[:10], y[:10], split="train", subject=person)
        house.add_examples(name, x[10:], y[10:], first=10, split="train")
        house.adapted(name)
    with house.worker_held():
        id = ask(house, person)
        assert code(house, "DELETE", f"/v1/models/{names[0]}")[0] in (200, 202, 204)
    erasure = ended(house, id, 20)
    assert erasure["state"] == "completed", erasure
    parts = {part["model"]: part for part in house.get(erasure["receipt"])["models"]}
    assert parts[names[0]]["method"] == "deleted"
    assert parts[names[0]]["checked"]
    assert not any(parts[names[0]]["checked"].values())
    assert near(house, parts[names[1]], x[10:], y[10:])


def test_a_job_of_somebody_who_was_lost_is_taken_over(house: House) -> None:
    name, person, *_ = known(house)
    with house.worker_held():
        id = ask(house, person)
        with house.database.write() as session:
            job = session.scalars(select(Job).where(Job.kind == JobKind.ERASE, Job.state == JobState.QUEUED)).one()
            job.state, job.lease_owner, job.lease_until = JobState.RUNNING, "nobody", now() - timedelta(seconds=1)
            job.attempts = 1
    assert ended(house, id, 20)["state"] == "completed"


@pytest.mark.parametrize("kind", ["number", "count"])
def test_other_targets_are_within_their_bound_too(house: House, kind: str) -> None:
    name, (x, y) = house.new_model(target=TARGETS[kind]), examples_of(kind, 300)
    house.add_examples(name, x[:PERSON], y[:PERSON], split="train", subject=f"person of {name}")
    house.add_examples(name, x[PERSON:], y[PERSON:], first=PERSON, split="train")
    house.adapted(name)
    [part] = erased(house, f"person of {name}")["models"]
    distance = np.linalg.norm(house.weights(name) - fit(kind, x[PERSON:], y[PERSON:], 1.0))
    assert distance <= part["certificate"]["bound"] + 1e-4


def test_a_person_removed_before_without_a_certificate_is_certified_to_be_forgotten(house: House) -> None:
    name, person, x, y = known(house, policy={"certify": "never"})
    house.post(f"/v1/models/{name}/removals", {"subjects": [person]})
    house.settled(name)
    assert house.champion(name)["certificate"] is None
    [part] = erased(house, person)["models"]
    assert (part["method"], part["certificate"]["kind"]) == ("adapted", "bound")
    assert near(house, part, x[PERSON:], y[PERSON:])
    # the one in between was never shown to have forgotten
    assert states(house, name) == {1: "purged", 2: "purged", 3: "champion"}
    assert house.datasets_agree(name)


def test_what_comes_about_the_person_meanwhile_is_forgotten_too(house: House) -> None:
    name, person, x, y = known(house)
    other, (more, labels) = house.new_model(), problem(60)
    with house.worker_held():
        id = ask(house, person)
        house.add_examples(name, x[:10], y[:10], first=1000, split="train", subject=person)
        house.add_examples(other, more[:5], labels[:5], split="train", subject=person)
        house.add_examples(other, more[5:], labels[5:], first=5, split="train")
    assert ended(house, id)["state"] == "completed"
    parts = {part["model"]: part for part in house.get(f"/v1/erasures/{id}/receipt")["models"]}
    assert {part["model"]: part["examples"] for part in parts.values()} == {name: PERSON + 10, other: 5}
    assert near(house, parts[name], x[PERSON:], y[PERSON:])
    assert len(rows(house, other)) == 55


def test_a_version_that_knew_the_person_cannot_come_back_while_they_are_erased(house: House) -> None:
    name, person, *_ = known(house)
    with house.worker_held():
        id = ask(house, person)
        assert code(house, "POST", f"/v1/models/{name}/versions/1/promote") == (409, "version_erased")
    assert ended(house, id)["state"] == "completed"
