"""The audit log and returning people, with both clients."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from amend import Client
from tests.amend.operations.data import columns
from tests.worker.deployment import Deployment

pytestmark = pytest.mark.parametrize("deployment", ["sqlite"], indirect=True)


def test_a_person_returns_and_the_log_says_who_decided(client: Client, deployment: Deployment) -> None:
    name = deployment.new_model()
    person = f"person of {name}"
    started = datetime.now(UTC) - timedelta(minutes=1)
    client.add_examples(name, columns(40, subject=[person] * 2 + [None] * 38))
    client.wait(client.adapt(name))
    done = client.wait(client.erase(person))
    assert client.receipt(done)["recognised_until"] > done.completed_at.isoformat()
    again = columns(3, subject=[person] * 3)
    again["id"] = [f"back{i}" for i in range(3)]
    assert client.add_examples(name, again).quarantined == 3
    assert client.discard_returned(name, ["back0"]).examples == 1
    accepted = client.accept_returned(name)
    assert accepted.examples == 2
    client.wait(accepted)
    assert {example.id for example in client.examples(name)} >= {"back1", "back2"}
    log = list(client.audit(model=name, since=started, until=datetime.now(UTC) + timedelta(minutes=1)))
    decisions = ["returned_accepted", "returned_discarded"]
    assert [entry.action for entry in log if entry.action in decisions] == decisions
    assert [entry.action for entry in client.audit(erasure=done.id)] == ["erasure_requested"]
    assert [entry.counts for entry in client.audit(model=name, action="returned_accepted")] == [{"examples": 2}]
