"""Erasures from end to end: a person asked to be forgotten, and is."""

from __future__ import annotations

import hashlib

import numpy as np
import pytest

from core.models import catalog
from core.tables.versions import Version
from tests.receipt_terms import unexplained
from tests.worker.deployment import Deployment, fitted, problem
from tests.worker.erasure_helpers import PERSON, ask, erase, near, rows, states, train_with_person, wait_for_end
from tests.worker.test_networks import MLP, bent


def test_an_erasure_forgets_a_person_and_writes_a_receipt(deployment: Deployment) -> None:
    name, person, x, y = train_with_person(deployment)
    erasure = wait_for_end(deployment, ask(deployment, person))
    assert erasure["state"] == "completed", erasure
    [part] = erasure["models"]
    assert (part["model"], part["examples"], part["method"], part["state"]) == (name, PERSON, "adapted", "completed")
    receipt = deployment.get(erasure["receipt"])
    [told] = receipt["models"]
    assert told["checked"] == dict.fromkeys(told["checked"], 0)
    assert (told["deleted"]["examples"], told["deleted"]["versions"]) == (PERSON, 1)
    assert (told["version"], told["certificate"]["bound"]) == (part["version"], part["bound"])
    assert told["certificate"]["relative"] <= told["tolerance"]
    assert near(deployment, told, x[PERSON:], y[PERSON:])
    with deployment.database.read() as session:
        salt = session.get_one(Version, (catalog.find(session, name, None).id, told["version"])).salt or b""
    hashed = bytes.fromhex(deployment.champion(name)["sha256"])
    assert told["commitment"] == hashlib.sha256(salt + hashed).hexdigest()
    assert states(deployment, name) == {1: "purged", 2: "champion"}
    assert rows(deployment, name) == list(range(PERSON + 1, 301))
    assert deployment.get("/v1/receipts/verify")["valid"]
    assert person not in str(receipt)


def test_the_champion_is_the_same_to_the_last_bit_whoever_was_erased(deployment: Deployment) -> None:
    """Who has a candidate for the person, all other examples and the weights learns nothing by trying it."""
    x, y = problem(300)
    files = set()
    for n, scale in enumerate((1.0, 3.0, -2.0)):
        name, person = deployment.new_model(), f"candidate {n}"
        deployment.add_examples(name, x[:3] * scale, y[:3] if n else 1 - y[:3], split="train", subject=person)
        deployment.add_examples(name, x[3:], y[3:], first=3, split="train")
        deployment.adapted(name)
        known_by = deployment.champion(name)["sha256"]
        [part] = erase(deployment, person)["models"]
        assert part["method"] == "adapted"
        assert "depend only on the remaining examples" in part["words"]
        files.add(deployment.champion(name)["sha256"])
        assert known_by not in files
    assert len(files) == 1


def test_a_person_whom_nobody_knows_has_a_receipt_after_a_decision(deployment: Deployment) -> None:
    waiting = deployment.post("/v1/erasures", {"subject": "nobody at all"})
    assert (waiting["state"], waiting["models"]) == ("unmatched", [])
    erasure = deployment.post(f"/v1/erasures/{waiting['id']}/approve", {})
    assert (erasure["state"], erasure["models"]) == ("completed", [])
    assert deployment.get(erasure["receipt"])["found"] == 0


def test_a_version_trained_on_the_person_neither_predicts_nor_downloads(deployment: Deployment) -> None:
    name, person, x, _ = train_with_person(deployment)
    erase(deployment, person)
    with deployment.client() as client:
        predicted = client.post(f"/v1/models/{name}/predictions", json={"inputs": [x[50].tolist()], "version": 1})
        assert (predicted.status_code, predicted.json()["code"]) == (409, "version_purged")
        assert client.get(f"/v1/models/{name}/versions/1/weights").status_code == 404
        # the champion answers all the time
        assert client.post(f"/v1/models/{name}/predictions", json={"inputs": [x[50].tolist()]}).status_code == 200


def test_several_models_forget_at_once_and_have_one_receipt(deployment: Deployment) -> None:
    person, (x, y) = "a person in three models", problem(300)
    names = [deployment.new_model() for _ in range(3)]
    for i, name in enumerate(names):
        deployment.add_examples(name, x[: 10 * i + 10], y[: 10 * i + 10], split="train", subject=person)
        deployment.add_examples(name, x[50:], y[50:], first=50, split="train")
        deployment.adapted(name)
    receipt = erase(deployment, person)
    assert receipt["found"] == 60
    assert sorted((part["model"], part["examples"]) for part in receipt["models"]) == sorted(
        zip(names, (10, 20, 30), strict=True)
    )
    assert all(near(deployment, part, x[50:], y[50:]) for part in receipt["models"])


def test_what_was_removed_before_is_deleted_with_the_rest(deployment: Deployment) -> None:
    name, person, x, y = train_with_person(deployment)
    with deployment.worker_held():
        deployment.remove(name, range(5))
        id = ask(deployment, person)
        # of the person or not: what is removed goes
        assert deployment.get(f"/v1/erasures/{id}")["models"][0]["examples"] == PERSON
    receipt = deployment.get(wait_for_end(deployment, id)["receipt"])
    assert receipt["models"][0]["deleted"]["examples"] == PERSON
    assert near(deployment, receipt["models"][0], x[PERSON:], y[PERSON:])
    assert rows(deployment, name) == list(range(PERSON + 1, 301))


def test_a_person_of_the_holdout_alone_leaves_the_weights_as_they_are(deployment: Deployment) -> None:
    name, (x, y) = deployment.new_model(), problem(300)
    deployment.add_examples(name, x[:200], y[:200], split="train")
    deployment.add_examples(name, x[200:250], y[200:250], first=200, split="holdout", subject=f"judge of {name}")
    deployment.add_examples(name, x[250:], y[250:], first=250, split="holdout")
    deployment.adapted(name)
    before = deployment.weights(name)
    receipt = erase(deployment, f"judge of {name}")
    assert receipt["models"][0]["deleted"]["examples"] == 50
    assert receipt["models"][0]["checked"]["rows of the holdout's sample"] == 0
    assert deployment.champion(name)["metrics"]["rows"] == 50
    np.testing.assert_allclose(deployment.weights(name), before, atol=1e-5)
    assert len(rows(deployment, name)) == 250


def test_a_second_request_joins_the_open_one_and_covers_examples_added_since(deployment: Deployment) -> None:
    name, person, x, y = train_with_person(deployment)
    with deployment.worker_held():
        first = ask(deployment, person)
        deployment.add_examples(name, x[:3], y[:3], first=1000, split="train", subject=person)
        assert ask(deployment, person) == first
        assert deployment.get(f"/v1/erasures/{first}")["models"][0]["examples"] == PERSON + 3
    erasure = wait_for_end(deployment, first)
    assert erasure["state"] == "completed", erasure
    assert near(deployment, deployment.get(erasure["receipt"])["models"][0], x[PERSON:], y[PERSON:])
    assert rows(deployment, name) == list(range(PERSON + 1, 301))


def test_the_version_without_the_person_answers_even_if_people_promote(deployment: Deployment) -> None:
    name, person, x, y = train_with_person(deployment, policy={"promote": "manual"})
    deployment.post(f"/v1/models/{name}/versions/1/promote")
    receipt = erase(deployment, person)
    assert deployment.champion(name)["version"] == receipt["models"][0]["version"] == 2
    assert near(deployment, receipt["models"][0], x[PERSON:], y[PERSON:])
    assert [p["by"] for p in deployment.get(f"/v1/models/{name}/promotions")["items"]][0] == "erasure"


@pytest.mark.parametrize("certify", ["never", "removals"])
def test_a_certificate_is_made_whatever_the_policy(deployment: Deployment, certify: str) -> None:
    name, person, x, y = train_with_person(deployment, policy={"certify": certify})
    assert deployment.champion(name)["certificate"] is None
    receipt = erase(deployment, person)
    assert receipt["models"][0]["method"] == "adapted"
    assert near(deployment, receipt["models"][0], x[PERSON:], y[PERSON:])


def test_a_model_whose_bound_cannot_be_met_is_retrained_and_the_receipt_states_it(deployment: Deployment) -> None:
    name, person, x, y = train_with_person(deployment, policy={"tolerance": {"relative_bound": 1e-300}})
    [part] = erase(deployment, person)["models"]
    assert (part["method"], part["words"]) == ("retrained", "retrained without this data")
    assert deployment.champion(name)["kind"] == "trained"
    np.testing.assert_allclose(deployment.weights(name), fitted(x[PERSON:], y[PERSON:]), atol=1e-4)


@pytest.mark.parametrize("deployment", ["sqlite"], indirect=True)
def test_a_network_has_measured_figures_and_an_audit(deployment: Deployment) -> None:
    x, y = bent(800)
    y[:30] = 1 - y[:30]  # what the person says is against the rule: it can only be known by heart
    adapt = {"erasure": {"retrain": False}}
    name = deployment.new_model(training={"learning_rate": 0.01}, architecture=MLP, policy=adapt)
    deployment.add_examples(name, x[:30], y[:30], split="train", subject=f"person of {name}")
    deployment.add_examples(name, x[30:600], y[30:600], first=30, split="train")
    deployment.add_examples(name, x[600:], y[600:], first=600, split="holdout")
    deployment.adapted(name)
    receipt = erase(deployment, f"person of {name}")
    [part] = receipt["models"]
    assert part["method"] == "adapted"
    assert part["certificate"]["kind"] == "measured"
    assert "bound" not in str(part)
    measured = part["certificate"]["audit"]
    assert measured["removed"] == part["examples"]
    assert measured["removed_loss"] > 0
    assert measured["unseen_loss"] > 0
    assert part["words"].startswith("adapted")
    assert "from weights that were trained on this data" in part["words"]
    unproven = f"Model {name} is a network that was adapted from weights trained on this data: it is not proven"
    assert unproven in receipt["statement"]
    assert "Too few examples" not in receipt["statement"]
    [stays] = part["versions"]["stay"]
    assert stays["reason"] == "adapted without this data, from weights that were trained on it"
    assert 0 <= part["audit"]["after"] <= part["audit"]["before"] <= 1
    assert len(rows(deployment, name)) == 770


@pytest.mark.parametrize("deployment", ["sqlite"], indirect=True)
def test_a_network_from_which_too_little_was_deleted_to_measure_says_so(deployment: Deployment) -> None:
    x, y = bent(400)
    name = deployment.new_model(
        training={"learning_rate": 0.01}, architecture=MLP, policy={"erasure": {"retrain": False}}
    )
    deployment.add_examples(name, x[:5], y[:5], split="train", subject=f"person of {name}")
    deployment.add_examples(name, x[5:300], y[5:300], first=5, split="train")
    deployment.add_examples(name, x[300:], y[300:], first=300, split="holdout")
    deployment.adapted(name)
    receipt = erase(deployment, f"person of {name}")
    [part] = receipt["models"]
    if part["method"] == "adapted":
        assert f"Too few examples were deleted to measure what is left in model {name}" in receipt["statement"]
    else:  # no adaptation passed its audit
        assert "network" not in receipt["statement"]
    with deployment.client() as client:
        page = client.get(f"/v1/erasures/{receipt['erasure']}/receipt", headers={"Accept": "text/html"}).text
    assert unexplained(page) == set()


@pytest.mark.parametrize("deployment", ["sqlite"], indirect=True)
def test_the_receipt_of_a_kept_version_says_so_and_lists_its_copies(deployment: Deployment) -> None:
    name, person, *_ = train_with_person(deployment, policy={"erasure": {"keep_superseded": "1h"}})
    with deployment.client() as client:
        client.get(f"/v1/models/{name}/versions/1/weights").raise_for_status()
        receipt = erase(deployment, person)
        [part] = receipt["models"]
        kept = f"Versions trained on this data are kept, out of use, until {part['kept_until'][:10]}."
        assert kept in receipt["statement"]
        assert part["was_in_use"] is True
        assert [(copy["what"], copy["version"]) for copy in part["copies"]] == [("weights_downloaded", 1)]
        assert "MLflow does not record" not in " ".join(receipt["limits"])  # there is none
        # the bundle has the version that was made without the person's data, which is a copy for later erasures
        client.get(f"/v1/erasures/{receipt['erasure']}/bundle").raise_for_status()
        page = client.get(f"/v1/erasures/{receipt['erasure']}/receipt", headers={"Accept": "text/html"}).text
        assert unexplained(page) == set()
        [entry] = client.get(f"/v1/audit?model={name}&action=bundle_downloaded").json()["items"]
        assert entry["version"] == part["version"]
        # deleting the model purges the kept version, which the register records
        client.delete(f"/v1/models/{name}").raise_for_status()
    trail = deployment.get(f"/v1/erasures/{receipt['erasure']}")["trail"]
    assert [entry["action"] for entry in trail] == ["filed", "completed", "exported", "purged"]


def test_an_audit_compares_a_linear_model_before_and_after(deployment: Deployment) -> None:
    name, (x, y) = deployment.new_model(), problem(400)
    person = f"person of {name}"
    deployment.add_examples(name, x[:40], 1 - y[:40], split="train", subject=person)
    deployment.add_examples(name, x[40:80], y[40:80], first=40, split="train")
    deployment.add_examples(name, x[80:], y[80:], first=80, split="holdout")
    deployment.adapted(name)
    [part] = erase(deployment, person)["models"]
    assert part["audit"]["after"] < part["audit"]["before"]
