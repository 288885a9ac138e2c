"""Requests that wait for a decision, with workers at work."""

from __future__ import annotations

from datetime import timedelta

import numpy as np
from sqlalchemy import update

from core.database import now
from core.models import catalog
from core.versions.tables import Version
from tests.worker.house import House, fitted
from tests.worker.people import PERSON, ended, erased, filled_rows, known, near, states


def hold(house: House, person: str) -> str:
    erasure = house.post("/v1/erasures", {"subject": person, "hold": True})
    assert erasure["state"] == "held"
    return str(erasure["id"])


def test_nothing_is_deleted_while_a_request_is_held_and_a_refusal_brings_the_model_back(house: House) -> None:
    name, person, x, y = known(house)
    before = house.weights(name)
    id = hold(house, person)
    house.remove(name, [299])
    house.settled(name)  # a version is made without them meanwhile
    assert np.linalg.norm(house.weights(name) - fitted(x[PERSON:299], y[PERSON:299])) < 1e-2
    house.wait_until(lambda: 300 not in filled_rows(house, name))  # what was removed is deleted, what is held is not
    assert filled_rows(house, name) == list(range(1, 300))
    refusal = house.post(f"/v1/erasures/{id}/refuse", {"reason": "kept by law"})
    assert refusal["state"] == "refused"
    house.settled(name)
    assert house.datasets_agree(name)
    assert house.get(f"/v1/models/{name}")["counts"]["train"] == 299
    assert np.linalg.norm(house.weights(name) - fitted(x[:299], y[:299])) < 1e-2
    assert np.linalg.norm(house.weights(name) - before) < 1
    assert "purged" not in states(house, name).values()
    # under their new positions they are found as ever
    assert erased(house, person)["found"] >= PERSON


def test_an_approved_request_ends_with_a_receipt(house: House) -> None:
    name, person, x, y = known(house)
    id = hold(house, person)
    house.adapted(name)  # a version without them, made before anybody decided
    house.post(f"/v1/erasures/{id}/approve")
    erasure = ended(house, id)
    assert erasure["state"] == "completed", erasure
    receipt = house.get(erasure["receipt"])
    [part] = receipt["models"]
    assert near(house, part, x[PERSON:], y[PERSON:])
    assert states(house, name) == {1: "purged", 2: "purged", 3: "champion"}
    assert [event["what"] for event in receipt["trail"]] == ["filed", "approved"]


def test_a_clock_that_was_set_back_makes_no_receipt_without_a_certificate(house: House) -> None:
    """The version at the head was made before the person asked, whatever the clock says."""
    name, person, x, y = known(house, policy={"certify": "never"})
    house.post(f"/v1/models/{name}/removals", {"subjects": [person]})
    house.settled(name)
    assert house.champion(name)["certificate"] is None
    with house.database.write() as session:
        model = catalog.find(session, name, None)
        later = update(Version).where(Version.model_id == model.id).values(created_at=now() + timedelta(days=1))
        session.execute(later)
    [part] = erased(house, person)["models"]
    assert part["certificate"]["kind"] == "bound"
    assert near(house, part, x[PERSON:], y[PERSON:])
