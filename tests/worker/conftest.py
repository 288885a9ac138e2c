"""What tests of the worker share: a whole house, on SQLite with the embedded broker and on PostgreSQL with Redis."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests import servers
from tests.conftest import BACKENDS
from tests.servers import PostgresServer, RedisServer
from tests.worker.house import House


@pytest.fixture(scope="session")
def redis() -> Iterator[RedisServer]:
    with servers.redis() as server:
        yield server


@pytest.fixture(scope="session", params=BACKENDS)
def house(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[House]:
    """Service, broker, worker and scheduler, shared by all tests of a backend."""
    folder = tmp_path_factory.mktemp(f"house-{request.param}")
    if request.param == "postgresql":
        postgres: PostgresServer = request.getfixturevalue("postgres")
        broker: RedisServer = request.getfixturevalue("redis")
        house = House(folder, postgres.create_database("house"), AMEND_BROKER_URL=broker.url)
    else:
        house = House(folder)
        house.add("worker.broker")
    try:
        house.start()
        house.add("worker")
        house.add("worker.scheduler")
        house.wait_until(house.ready)
        yield house
    finally:
        house.stop()
