"""A real MLflow server and a migrated database for tests of tracking."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from mlflow import MlflowClient

from core.database import Database
from core.settings import Settings
from migrations import runner
from tests.core.tracking.tracked_model import TrackedModel
from tests.mlflow_server import MlflowServer, mlflow_server
from tests.stack import Stack


@pytest.fixture(scope="session")
def mlflow() -> Iterator[MlflowServer]:
    """Shared by all tests, and by their models, each with a name of its own."""
    with mlflow_server() as server:
        yield server


@pytest.fixture(scope="session")
def server(mlflow: MlflowServer) -> str:
    return mlflow.url


@pytest.fixture(scope="session")
def client(mlflow: MlflowServer) -> MlflowClient:
    return MlflowClient(mlflow.url, mlflow.url)


@pytest.fixture(scope="session")
def new_tracked(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[..., TrackedModel]]:
    """Makes models, all in one database."""
    settings = Settings(home=tmp_path_factory.mktemp("tracking"))
    database = Database(settings)
    runner.upgrade(database)

    def make(**spec: Any) -> TrackedModel:
        return TrackedModel(database, settings).create(**spec)

    yield make
    database.close()


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    stack = Stack(tmp_path_factory.mktemp("service"))
    try:
        yield stack.start()
    finally:
        stack.stop()
