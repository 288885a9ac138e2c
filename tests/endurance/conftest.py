"""Services to be hard on."""

from __future__ import annotations

import os
import signal
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.stack import Stack

Start = Callable[[str, int], "Sturdy"]


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


@pytest.fixture
def start(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Start]:
    """Starts a service on a backend, with some processes; it ends with the test."""
    started: list[Sturdy] = []

    def made(backend: str, processes: int) -> Sturdy:
        url = ""
        if backend == "postgresql":
            url = request.getfixturevalue("postgres").create_database(f"d{uuid.uuid4().hex}")
        started.append(Sturdy(tmp_path, url, AMEND_PROCESSES=str(processes)))
        started[-1].start()
        return started[-1]

    yield made
    for stack in started:
        stack.stop()
