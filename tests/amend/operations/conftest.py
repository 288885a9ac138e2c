"""A client of either kind for a whole Amend, and one whose answers get lost."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from amend import Client
from tests.amend.clients import Connect
from tests.amend.lossy import Lossy, lossy
from tests.worker.deployment import Deployment


@pytest.fixture
def client(connect: Connect, deployment: Deployment) -> Client:
    return connect(deployment.url, deployment.admin_key)


@pytest.fixture
def proxy(deployment: Deployment) -> Iterator[Lossy]:
    with lossy(deployment.port) as proxy:
        yield proxy


@pytest.fixture
def shaky(connect: Connect, deployment: Deployment, proxy: Lossy) -> Client:
    """A client that goes through the proxy."""
    return connect(proxy.url, deployment.admin_key, pauses=(0.01, 0.01, 0.01))
