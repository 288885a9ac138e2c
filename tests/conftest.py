"""What tests of the service share. Each test that asks for `stack` runs on SQLite and on PostgreSQL."""

from __future__ import annotations

from collections.abc import Iterator

import httpx
import pytest

from tests import servers
from tests.servers import PostgresServer
from tests.stack import Stack

BACKENDS = ("sqlite", "postgresql")


@pytest.fixture(scope="session")
def postgres() -> Iterator[PostgresServer]:
    with servers.postgres() as server:
        yield server


@pytest.fixture(scope="session", params=BACKENDS)
def stack(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    """A running service, shared by all tests of a backend."""
    url = ""
    if request.param == "postgresql":
        url = request.getfixturevalue("postgres").create_database("amend")
    stack = Stack(tmp_path_factory.mktemp(request.param), url)
    try:
        yield stack.start()
    finally:
        stack.stop()


@pytest.fixture
def api(stack: Stack) -> Iterator[httpx.Client]:
    """A client with the admin's key."""
    with stack.client() as client:
        yield client
