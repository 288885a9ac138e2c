"""A second service with small limits, and with settings that are off in the first one."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.stack import Stack

SMALL_BODY = 4096
SMALL_BATCH = 5
PATIENCE = 2.0
CONNECTIONS = 40
ORIGIN = "https://app.example:8443"
MLFLOW_PAGES = "https://mlflow.example"


@pytest.fixture(scope="session")
def small(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    limits = {
        "AMEND_MAX_BODY_BYTES": str(SMALL_BODY),
        "AMEND_MAX_BATCH": str(SMALL_BATCH),
        "AMEND_MAX_WAIT": "0.3",
        "AMEND_MAX_CONNECTIONS": str(CONNECTIONS),
        "AMEND_CLIENT_TIMEOUT": str(PATIENCE),
    }
    others = {
        "AMEND_CASELESS_SUBJECTS": "true",
        "AMEND_ERASURE_HOLD": "true",
        "AMEND_RETURNING_SUBJECTS": "refuse",
        "AMEND_MLFLOW_PAGES_URL": f"{MLFLOW_PAGES}/",
        "AMEND_CORS_ORIGINS": f"https://other.example, {ORIGIN}",
    }
    stack = Stack(tmp_path_factory.mktemp("small"), **limits, **others)
    try:
        yield stack.start()
    finally:
        stack.stop()
