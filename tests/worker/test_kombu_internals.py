"""What `worker.kombu_internals` relies on.

If one of these tests fails, an update of kombu has changed an internal function. Check whether a worker of the new
version survives the loss of its broker by itself (`tests/endurance/test_workers.py`), and drop or adapt the module.
"""

from __future__ import annotations

import inspect
from types import SimpleNamespace
from typing import Any

import pytest
from kombu import Connection
from kombu.transport import redis as transport
from redis.exceptions import ConnectionError as BrokerGone

from worker import kombu_internals


@pytest.fixture(autouse=True)
def restored(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transport.Transport, "Channel", transport.Transport.Channel)


def test_kombu_still_has_the_method_that_is_overridden() -> None:
    assert list(inspect.signature(transport.Channel._connparams).parameters) == ["self", "asynchronous"]


def test_a_transport_creates_the_installed_channel() -> None:
    kombu_internals.install()
    created: Any = Connection("redis://127.0.0.1:1/0").transport
    assert created.Channel is kombu_internals.Channel


def test_a_channel_whose_connection_is_lost_reports_that_the_broker_is_down() -> None:
    channel = object.__new__(kombu_internals.Channel)
    channel.connection = SimpleNamespace(client=None)
    with pytest.raises(BrokerGone):
        channel._connparams()
