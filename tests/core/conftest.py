"""A migrated database for tests of core, on SQLite and on PostgreSQL, without a service around it."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator

import pytest

from core.database import Database
from core.settings import Settings
from migrations import runner
from tests.conftest import BACKENDS
from tests.core.ledger.reference_ledger import SECRET

MakeSettings = Callable[..., Settings]


@pytest.fixture(scope="session", params=BACKENDS)
def make_settings(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> MakeSettings:
    """Settings with a home of their own and, by default, an empty database."""

    def make(**given: object) -> Settings:
        url = ""
        if request.param == "postgresql" and "database_url" not in given:
            url = request.getfixturevalue("postgres").create_database(f"t{uuid.uuid4().hex}")
        values = {"home": tmp_path_factory.mktemp("home"), "database_url": url, "secret_key": SECRET.decode()}
        return Settings.model_validate({**values, **given})

    return make


@pytest.fixture(scope="session")
def settings(make_settings: MakeSettings) -> Settings:
    """Settings of `database`."""
    return make_settings(database_timeout=60.0)


@pytest.fixture(scope="session")
def database(settings: Settings) -> Iterator[Database]:
    """Shared: tests keep out of each other's way by models of their own."""
    yield from migrated(settings)


@pytest.fixture
def empty_database(make_settings: MakeSettings) -> Iterator[Database]:
    """One that no other test writes to."""
    yield from migrated(make_settings())


def migrated(settings: Settings) -> Iterator[Database]:
    database = Database(settings)
    runner.upgrade(database)
    yield database
    database.close()
