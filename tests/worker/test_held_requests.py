"""Requests that wait for a decision, with workers at work."""

from __future__ import annotations

from datetime import timedelta

import numpy as np
from sqlalchemy import update

from core.clock import now
from core.models import catalog
from core.tables.versions import Version
from tests.worker.deployment import Deployment, fitted
from tests.worker.erasure_helpers import PERSON, erase, filled_rows, near, states, train_with_person, wait_for_end


def hold(deployment: Deployment, person: str) -> str:
    erasure = deployment.post("/v1/erasures", {"subject": person, "hold": True})
    assert erasure["state"] == "held"
    return str(erasure["id"])


def test_nothing_is_deleted_while_a_request_is_held_and_a_refusal_brings_the_model_back(deployment: Deployment) -> None:
    name, person, x, y = train_with_person(deployment)
    before = deployment.weights(name)
    id = hold(deployment, person)
    deployment.remove(name, [299])
    deployment.settled(name)  # a version is made without them meanwhile
    assert np.linalg.norm(deployment.weights(name) - fitted(x[PERSON:299], y[PERSON:299])) < 1e-2
    deployment.wait_until(
        lambda: 300 not in filled_rows(deployment, name)
    )  # what was removed is deleted, what is held is not
    assert filled_rows(deployment, name) == list(range(1, 300))
    refusal = deployment.post(f"/v1/erasures/{id}/refuse", {"reason": "kept by law"})
    assert refusal["state"] == "refused"
    deployment.settled(name)
    assert deployment.datasets_agree(name)
    assert deployment.get(f"/v1/models/{name}")["counts"]["train"] == 299
    assert np.linalg.norm(deployment.weights(name) - fitted(x[:299], y[:299])) < 1e-2
    assert np.linalg.norm(deployment.weights(name) - before) < 1
    assert "purged" not in states(deployment, name).values()
    # under their new positions they are found as ever
    assert erase(deployment, person)["found"] >= PERSON


def test_an_approved_request_ends_with_a_receipt(deployment: Deployment) -> None:
    name, person, x, y = train_with_person(deployment)
    id = hold(deployment, person)
    deployment.adapted(name)  # a version without them, made before anybody decided
    deployment.post(f"/v1/erasures/{id}/approve")
    erasure = wait_for_end(deployment, id)
    assert erasure["state"] == "completed", erasure
    receipt = deployment.get(erasure["receipt"])
    [part] = receipt["models"]
    assert near(deployment, part, x[PERSON:], y[PERSON:])
    assert states(deployment, name) == {1: "purged", 2: "purged", 3: "champion"}
    assert [event["action"] for event in receipt["trail"]] == ["filed", "held", "approved"]


def test_a_clock_that_was_set_back_makes_no_receipt_without_a_certificate(deployment: Deployment) -> None:
    """The version at the head was made before the person asked, whatever the clock says."""
    name, person, x, y = train_with_person(deployment, policy={"certify": "never"})
    deployment.post(f"/v1/models/{name}/removals", {"subjects": [person]})
    deployment.settled(name)
    assert deployment.champion(name)["certificate"] is None
    with deployment.database.write() as session:
        model = catalog.find(session, name, None)
        later = update(Version).where(Version.model_id == model.id).values(created_at=now() + timedelta(days=1))
        session.execute(later)
    [part] = erase(deployment, person)["models"]
    assert part["certificate"]["kind"] == "bound"
    assert near(deployment, part, x[PERSON:], y[PERSON:])
