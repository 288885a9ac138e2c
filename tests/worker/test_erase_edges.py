"""Erasures where little is left, where something is in the way, or where something else happens at the same time."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import numpy as np
import pytest
from sqlalchemy import select

from core.clock import now
from core.tables.jobs import Job, JobKind, JobState
from tests.worker.deployment import Deployment, fitted, problem
from tests.worker.erasure_helpers import PERSON, ask, erase, near, rows, states, train_with_person, wait_for_end
from tests.worker.sklearn_oracle import TARGETS, examples_of, fit
from tests.worker.test_failures import POISON, curve, store
from tests.worker.test_overtaking import DEGREE, DIM, N, filled, held


def code(deployment: Deployment, method: str, path: str, body: Any = None) -> tuple[int, str | None]:
    """The status of an answer, and its code if it is a problem."""
    with deployment.client() as client:
        answer = client.request(method, path, json=body)
    return answer.status_code, answer.json().get("code") if answer.content else None


def test_a_model_without_examples_does_not_predict_and_can_be_trained_again(deployment: Deployment) -> None:
    name, (x, y) = deployment.new_model(), problem(50)
    deployment.add_examples(name, x, y, split="train", subject=f"all of {name}")
    deployment.adapted(name)
    [part] = erase(deployment, f"all of {name}")["models"]
    assert part["method"] == "withdrawn"
    assert deployment.get(f"/v1/models/{name}")["champion"] is None
    asked = {"inputs": [x[0].tolist()]}
    deployment.wait_until(
        lambda: code(deployment, "POST", f"/v1/models/{name}/predictions", asked) == (409, "champion_missing")
    )
    assert set(states(deployment, name).values()) == {"purged"}
    assert rows(deployment, name) == []
    deployment.add_examples(name, x, y, first=100, split="train")
    assert deployment.adapted(name)["state"] == "succeeded"
    version = deployment.champion(name)
    assert (version["kind"], version["position"]) == ("trained", 150)
    np.testing.assert_allclose(deployment.weights(name), fitted(x, y), atol=1e-4)


def test_a_model_with_only_its_holdout_left_answers_nothing(deployment: Deployment) -> None:
    name, (x, y) = deployment.new_model(), problem(80)
    deployment.add_examples(name, x[:50], y[:50], split="train", subject=f"all of {name}")
    deployment.add_examples(name, x[50:], y[50:], first=50, split="holdout")
    deployment.adapted(name)
    assert erase(deployment, f"all of {name}")["models"][0]["method"] == "withdrawn"
    assert deployment.get(f"/v1/models/{name}")["champion"] is None
    assert len(rows(deployment, name)) == 30


def test_the_last_example_of_a_class_is_forgotten(deployment: Deployment) -> None:
    name = deployment.new_model(target=TARGETS["classes"])
    x, y = examples_of("classes", 300)
    last = y == 2
    deployment.add_examples(name, x[last], y[last], split="train", subject=f"class of {name}")
    deployment.add_examples(name, x[~last], y[~last], first=1000, split="train")
    deployment.adapted(name)
    [part] = erase(deployment, f"class of {name}")["models"]
    # without a penalty its bias has no optimum: nobody can be near that, but the others are as they would be
    inputs = {"inputs": x[~last][:50].tolist()}
    outputs = deployment.post(f"/v1/models/{name}/predictions", inputs)["outputs"]
    w = fit("binary", x[~last], y[~last], 0.5)
    chance = 1 / (1 + np.exp(-(x[~last][:50] @ w[:-1] + w[-1])))
    found = np.array([o["probabilities"]["1"] for o in outputs])
    assert max(o["probabilities"]["2"] for o in outputs) < 0.02, part
    np.testing.assert_allclose(found, chance, atol=0.05)


def test_all_of_the_memory_is_forgotten_at_once(deployment: Deployment) -> None:
    name, (x, y) = deployment.new_model(policy={"memory": {"fraction": 0.05}}), problem(300)
    deployment.add_examples(name, x, y, split="train")
    deployment.adapted(name)
    remembered = set(deployment.state(name).memory.key.tolist())
    assert 0 < len(remembered) < 100
    # the same examples, in the same order, so that the same are remembered; now they are about somebody
    twin, person = deployment.new_model(policy={"memory": {"fraction": 0.05}}), f"memory of {name}"
    bodies = [
        {"id": f"e{i}", "x": x[i].tolist(), "y": int(y[i]), "split": "train"}
        | ({"subject": person} if i + 1 in remembered else {})
        for i in range(300)
    ]
    deployment.post(f"/v1/models/{twin}/examples", {"examples": bodies})
    deployment.adapted(twin)
    assert set(deployment.state(twin).memory.key.tolist()) == remembered
    [part] = erase(deployment, person)["models"]
    others = [i for i in range(300) if i + 1 not in remembered]
    assert part["examples"] == len(remembered)
    assert near(deployment, part, x[others], y[others])
    deployment.remove(twin, others[:10])  # it has a new memory, and goes on from there
    deployment.settled(twin)
    version = deployment.champion(twin)
    assert (version["kind"], version["certificate"]["relative"] <= 0.01) == ("adapted", True)


def test_examples_added_seconds_before_the_request_are_erased(deployment: Deployment) -> None:
    name, (x, y) = deployment.new_model(), problem(220)
    deployment.add_examples(name, x[:200], y[:200], split="train")
    deployment.adapted(name)
    deployment.add_examples(name, x[200:], y[200:], first=200, split="train", subject=f"new to {name}")
    [part] = erase(deployment, f"new to {name}")["models"]
    assert part["deleted"]["examples"] == 20
    assert states(deployment, name)[1] == "superseded"  # it never knew the person
    assert near(deployment, part, x[:200], y[:200])


def test_an_erasure_before_the_first_training_trains_nothing(
    deployment: Deployment,
) -> None:
    name, (x, y) = deployment.new_model(), problem(220)
    deployment.add_examples(name, x[:20], y[:20], split="train", subject=f"first of {name}")
    deployment.add_examples(name, x[20:], y[20:], first=20, split="train")
    receipt = erase(deployment, f"first of {name}")
    assert receipt["models"][0]["deleted"]["examples"] == 20
    assert states(deployment, name) == {}
    assert len(rows(deployment, name)) == 200
    deployment.adapted(name)
    np.testing.assert_allclose(deployment.weights(name), fitted(x[20:], y[20:]), atol=1e-4)


@pytest.mark.parametrize("deployment", ["postgresql"], indirect=True)
def test_a_retrain_that_runs_meanwhile_does_not_bring_the_person_back(deployment: Deployment) -> None:
    name, person = filled(deployment, subject="person of a retrain"), "person of a retrain"
    deployment.adapted(name)
    deployment.ended(deployment.remove(name, range(100, 120))["job"])
    with held(deployment, name, "retrains") as retrain:
        erasure = wait_for_end(deployment, ask(deployment, person))
        assert erasure["state"] == "completed", erasure
    assert deployment.ended(retrain["id"])["state"] == "succeeded"
    deployment.settled(name)
    assert all(
        deployment.version(name, n)["position"] >= N + 20 + 40
        for n, s in states(deployment, name).items()
        if s != "purged"
    )
    x, y = problem(N, dim=DIM)
    kept = [*range(40, 100), *range(120, N)]
    truth = fit("binary", x[kept] / 3, y[kept], 1.0, DEGREE)
    assert np.linalg.norm(deployment.weights(name) - truth) <= 0.01 * np.linalg.norm(truth)


def test_an_erasure_whose_adaptation_fails_has_a_reason_and_can_be_retried(deployment: Deployment) -> None:
    name = deployment.new_model(input={"kind": "vector", "dim": 1}, architecture={"kind": "linear", "degree": 10})
    x, y = curve(200)
    deployment.add_examples(name, x[:20], y[:20], split="train", subject=f"person of {name}")
    deployment.add_examples(name, x[20:], y[20:], first=20, split="train")
    deployment.adapted(name)
    store(deployment, name, POISON, np.array([1]), 200, "train")
    id = ask(deployment, f"person of {name}")
    erasure = wait_for_end(deployment, id)
    assert (erasure["state"], erasure["receipt"]) == ("failed", None)
    error = erasure["models"][0]["error"]
    assert error["code"] == "solver_failed"
    assert "Check the examples" in error["detail"]
    assert "The example at position 201 contains far larger numbers than usual. Remove it" in error["detail"]
    assert deployment.champion(name)["version"] == 1
    jobs = len(deployment.get(f"/v1/jobs?model={name}")["items"])
    deployment.settled(name)
    with deployment.worker_held():  # the job that deletes what was removed would take it up again before us
        deployment.remove(name, [200])
        deployment.post(f"/v1/erasures/{id}/retry")
    erasure = wait_for_end(deployment, id)
    assert erasure["state"] == "completed", erasure
    assert states(deployment, name)[1] == "purged"
    assert len(rows(deployment, name)) == 180
    assert jobs < 10


def test_the_job_that_erases_cannot_be_cancelled(deployment: Deployment) -> None:
    name, person, *_ = train_with_person(deployment)
    with deployment.worker_held():
        id = ask(deployment, person)
        [job] = [j for j in deployment.get(f"/v1/jobs?model={name}&kind=erase")["items"] if j["state"] == "queued"]
        assert code(deployment, "POST", f"/v1/jobs/{job['id']}/cancel") == (409, "job_required")
    assert wait_for_end(deployment, id, 20)["state"] == "completed"


def test_an_erasure_continues_when_its_adaptation_is_cancelled_and_requested_again(deployment: Deployment) -> None:
    name, person, *_ = train_with_person(deployment)
    with deployment.worker_held():
        adaptation = deployment.post(f"/v1/models/{name}/adaptations")["id"]
        id = ask(deployment, person)
        deployment.post(f"/v1/jobs/{adaptation}/cancel")
    if wait_for_end(deployment, id, 20)["state"] == "failed":
        deployment.post(f"/v1/erasures/{id}/retry")
    assert wait_for_end(deployment, id, 20)["state"] == "completed"


def test_a_model_that_is_deleted_meanwhile_has_forgotten_the_person(deployment: Deployment) -> None:
    person, (x, y) = "a person of a model that is deleted", problem(100)
    names = [deployment.new_model() for _ in range(2)]
    for name in names:
        deployment.add_examples(name, x[:10], y[:10], split="train", subject=person)
        deployment.add_examples(name, x[10:], y[10:], first=10, split="train")
        deployment.adapted(name)
    with deployment.worker_held():
        id = ask(deployment, person)
        assert code(deployment, "DELETE", f"/v1/models/{names[0]}")[0] == 204
    erasure = wait_for_end(deployment, id, 20)
    assert erasure["state"] == "completed", erasure
    parts = {part["model"]: part for part in deployment.get(erasure["receipt"])["models"]}
    assert parts[names[0]]["method"] == "deleted"
    assert parts[names[0]]["checked"]
    assert not any(parts[names[0]]["checked"].values())
    assert near(deployment, parts[names[1]], x[10:], y[10:])


def test_a_job_of_a_lost_worker_is_taken_over(deployment: Deployment) -> None:
    name, person, *_ = train_with_person(deployment)
    with deployment.worker_held():
        id = ask(deployment, person)
        with deployment.database.write() as session:
            job = session.scalars(select(Job).where(Job.kind == JobKind.ERASE, Job.state == JobState.QUEUED)).one()
            job.state, job.lease_owner, job.lease_expires_at = JobState.RUNNING, "nobody", now() - timedelta(seconds=1)
            job.attempts = 1
    assert wait_for_end(deployment, id, 20)["state"] == "completed"


@pytest.mark.parametrize("kind", ["number", "count"])
def test_other_targets_are_within_their_bound_too(deployment: Deployment, kind: str) -> None:
    name, (x, y) = deployment.new_model(target=TARGETS[kind]), examples_of(kind, 300)
    deployment.add_examples(name, x[:PERSON], y[:PERSON], split="train", subject=f"person of {name}")
    deployment.add_examples(name, x[PERSON:], y[PERSON:], first=PERSON, split="train")
    deployment.adapted(name)
    [part] = erase(deployment, f"person of {name}")["models"]
    distance = np.linalg.norm(deployment.weights(name) - fit(kind, x[PERSON:], y[PERSON:], 1.0))
    assert distance <= part["certificate"]["bound"] + 1e-4


def test_a_person_removed_before_without_a_certificate_is_certified_to_be_forgotten(deployment: Deployment) -> None:
    name, person, x, y = train_with_person(deployment, policy={"certify": "never"})
    deployment.post(f"/v1/models/{name}/removals", {"subjects": [person]})
    deployment.settled(name)
    assert deployment.champion(name)["certificate"] is None
    [part] = erase(deployment, person)["models"]
    assert (part["method"], part["certificate"]["kind"]) == ("adapted", "bound")
    assert near(deployment, part, x[PERSON:], y[PERSON:])
    # the one in between was never shown to have forgotten
    assert states(deployment, name) == {1: "purged", 2: "purged", 3: "champion"}
    assert deployment.datasets_agree(name)


def test_examples_of_the_person_added_meanwhile_are_forgotten(deployment: Deployment) -> None:
    name, person, x, y = train_with_person(deployment)
    other, (more, labels) = deployment.new_model(), problem(60)
    with deployment.worker_held():
        id = ask(deployment, person)
        deployment.add_examples(name, x[:10], y[:10], first=1000, split="train", subject=person)
        deployment.add_examples(other, more[:5], labels[:5], split="train", subject=person)
        deployment.add_examples(other, more[5:], labels[5:], first=5, split="train")
    assert wait_for_end(deployment, id)["state"] == "completed"
    parts = {part["model"]: part for part in deployment.get(f"/v1/erasures/{id}/receipt")["models"]}
    assert {part["model"]: part["examples"] for part in parts.values()} == {name: PERSON + 10, other: 5}
    assert near(deployment, parts[name], x[PERSON:], y[PERSON:])
    assert len(rows(deployment, other)) == 55


def test_a_version_trained_on_a_person_cannot_be_promoted_during_the_erasure(deployment: Deployment) -> None:
    name, person, *_ = train_with_person(deployment)
    with deployment.worker_held():
        id = ask(deployment, person)
        assert code(deployment, "POST", f"/v1/models/{name}/versions/1/promote") == (409, "version_erased")
    assert wait_for_end(deployment, id)["state"] == "completed"
