"""Retries of both clients: a request takes effect once even if its response is lost."""

from __future__ import annotations

import threading

import pytest

from amend import Client, NotFound, example_batches
from tests.amend.clients import Connect
from tests.amend.lossy import Lossy, lossy
from tests.amend.operations.data import INPUT, QUIET, TARGET, columns
from tests.servers import free_port
from tests.worker.deployment import Deployment

# What the database is makes no difference to a client.
pytestmark = pytest.mark.parametrize("deployment", ["sqlite"], indirect=True)


def test_requests_with_lost_responses_are_retried_and_take_effect_once(
    shaky: Client, proxy: Lossy, deployment: Deployment, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(example_batches, "BATCH_ROWS", 10)
    name = deployment.new_model() + "y"
    proxy.lose = 2
    assert shaky.create_model(name, INPUT, TARGET, policy=QUIET).name == name
    proxy.lose = 2
    added = shaky.add_examples(name, columns(25))
    assert (added.accepted, added.duplicates, added.last_position) == (25, 0, 25)
    # three attempts to create, all with one key; three at the first batch and one at each of the others, without a key
    assert len(set(proxy.keys[:3])) == 1
    assert proxy.keys[0] is not None
    assert proxy.keys[3:] == [None] * 5
    proxy.lose = 1
    trained = shaky.wait(shaky.adapt(name))
    proxy.lose = 1
    assert shaky.remove_examples(name, ["e1"]).removed == 1
    proxy.lose = 1
    asked = shaky.erase(name)
    proxy.lose, proxy.refuse = 1, 1
    shaky.delete_model(name)
    assert shaky.erasure(asked.id).id == asked.id
    assert trained.version == 1
    with pytest.raises(NotFound):
        shaky.model(name)


def test_requests_to_a_busy_or_starting_service_are_retried(
    shaky: Client, proxy: Lossy, connect: Connect, deployment: Deployment
) -> None:
    proxy.refuse = 3
    assert shaky.erase("nobody").state == "unmatched"
    assert len(proxy.keys) == 1
    port, over = free_port(), threading.Event()

    def start_late() -> None:
        with lossy(deployment.port, listen=port):
            over.wait(30)

    # nobody listens at first: connections are refused
    late = connect(f"http://127.0.0.1:{port}", deployment.admin_key, pauses=(0.1,) * 100)
    starting = threading.Timer(0.3, start_late)
    starting.start()
    try:
        assert late.erase("nobody").state == "unmatched"
    finally:
        over.set()
        starting.join()
