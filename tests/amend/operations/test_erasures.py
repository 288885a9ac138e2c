"""People who are forgotten, with both clients: requests, refusals, receipts."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from amend import Client, Conflict, ErasureFailed, responses
from tests.amend.operations.data import columns
from tests.worker.deployment import Deployment

# What the database is makes no difference to a client.
pytestmark = pytest.mark.parametrize("deployment", ["sqlite"], indirect=True)


def test_a_person_is_looked_up_held_and_refused(client: Client, deployment: Deployment) -> None:
    name = deployment.new_model()
    person = f"person of {name}"
    given = columns(3, subject=[person, person, None])
    client.add_examples(name, given)
    [held] = client.erase_all([person], hold=True)
    assert (held.state, held.trail[0].action) == ("held", "filed")
    assert [(found.model, found.examples) for found in client.look_up(person)] == [(name, 2)]
    assert [(line.model, line.id, line.in_force) for line in client.export(person)] == [
        (name, "e0", False),
        (name, "e1", False),
    ]
    assert client.refuse_erasure(held.id, "kept by law").state == "refused"
    assert client.refusal(held).reason == "kept by law"
    assert client.refusal_page(held).startswith("<!doctype html>")
    counts = client.model(name).counts
    assert counts.train + counts.holdout == 3
    again = client.erase(person, hold=True)
    assert client.wait_for_erasure(client.approve_erasure(again.id)).state == "completed"


def test_a_person_is_erased_and_the_receipt_checked(client: Client, deployment: Deployment) -> None:
    name = deployment.new_model()
    person = f"person of {name}"
    client.add_examples(name, columns(40, subject=[person] * 2 + [None] * 38))
    client.wait(client.adapt(name))
    asked = client.erase(person, reason="a letter", received_at=datetime(2026, 1, 1, tzinfo=UTC))
    states: list[responses.Erasure] = []
    done = client.wait(asked, progress=states.append)
    assert (done.state, done.models[0].examples, states[-1]) == ("completed", 2, done)
    assert client.receipt(done)["erasure"] == asked.id
    assert client.receipt_page(done).startswith("<!doctype html>")
    assert client.verify_receipts().valid
    assert client.erasure(asked.id) == done
    assert asked.id in [erasure.id for erasure in client.erasures(state="completed", overdue=False)]
    with pytest.raises(Conflict):
        client.extend_erasure(asked.id, "too late")
    with pytest.raises(Conflict):
        client.retry_erasure(asked.id)
    assert asked.id not in client.replay_erasures().erasures
    assert asked.id not in client.retry_erasures().retried


def test_a_request_that_is_refused_ends_the_waiting(client: Client, deployment: Deployment) -> None:
    name = deployment.new_model()
    client.add_examples(name, columns(20, subject=[name] * 20))
    with deployment.worker_held():
        asked = client.erase(name)
        assert client.extend_erasure(asked.id, "many requests").extension == "many requests"
        assert client.refuse_erasure(asked.id, "kept by law").refusal == "kept by law"
    with pytest.raises(ErasureFailed, match="refused"):
        client.wait_for_erasure(asked.id)


def test_the_other_rights_of_a_person(client: Client, deployment: Deployment) -> None:
    name = deployment.new_model()
    person = f"person of {name}"
    given = columns(3, subject=[person, person, None])
    client.add_examples(name, given)
    assert client.access_report(person).startswith("<!doctype html>")
    assert client.correct(person, name, "e0", y=1 - int(given["y"][0]), reference="C-1").replaced == 1
    restriction = client.restrict(person, reference="A18", received_at="2026-03-01")
    assert restriction.id in [one.id for one in client.restrictions()]
    assert client.restriction(restriction).models[0].examples == 2
    assert "lift" in client.letter(restriction, "lifting").title
    assert client.letter_page(restriction, "restriction").startswith("<!doctype html>")
    assert client.lift_restriction(restriction, "settled").state == "lifted"
    held = client.erase(person, hold=True, reference="client-1")
    assert client.letter(held, "confirmation").reference == "client-1"
    found = client.find_requests(person)
    assert ([one.id for one in found.erasures], found.restrictions[0].id) == ([held.id], restriction.id)
    assert client.withdraw_erasure(held).ended
    assert held.id in client.export_register()
    assert sum(year.withdrawn for year in client.erasure_statistics()) >= 1
