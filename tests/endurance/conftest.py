"""Services to be hard on: one and two processes, on SQLite and on PostgreSQL."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.conftest import BACKENDS
from tests.stack import Stack


class Sturdy(Stack):
    """A service that can be killed with everything it started."""

    def kill(self) -> None:
        """kill -9, all processes as good as at once: the first is stopped, so that it cannot start others."""
        assert self.process is not None
        self.process.send_signal(signal.SIGSTOP)
        children = Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children").read_text().split()
        for process in (*map(int, children), self.process.pid):
            os.kill(process, signal.SIGKILL)
        self.process.wait(30)


@pytest.fixture(
    scope="session",
    params=[(backend, processes) for backend in BACKENDS for processes in (1, 2)],
    ids=lambda given: f"{given[0]}-{given[1]}",
)
def sturdy(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Sturdy]:
    backend, processes = request.param
    name = f"{backend}_{processes}"
    url = request.getfixturevalue("postgres").create_database(name) if backend == "postgresql" else ""
    stack = Sturdy(tmp_path_factory.mktemp(name), url, AMEND_PROCESSES=str(processes))
    try:
        stack.start()
        yield stack
    finally:
        stack.stop()
