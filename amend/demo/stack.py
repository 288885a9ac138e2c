"""``amend up`` as a child process, with its own folder and ports."""

import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Self

from amend.client import Client
from amend.errors import UnreachableError
from amend.responses import Health
from amend.up import guard
from amend.up.preflight import free_ports
from amend.up.stack import LOOPBACK

GUARD = [sys.executable, "-I", "-S", guard.__file__]
UP = [sys.executable, "-P", "-c", "from amend.cli import main; main()", "up"]
START_SECONDS = 180.0
STOP_SECONDS = 60.0
POLL_SECONDS = 0.3
# So that the demo does not wait long for the scheduler, or for idle workers to stop.
QUICK_SETTINGS = {"AMEND_TICK_SECONDS": "1", "AMEND_SHUTDOWN_TIMEOUT": "2"}
LOG_LINES = 15
PARTS = ("service", "database", "store", "broker", "worker", "mlflow")


class NotReady(Exception):
    """The stack did not start, or has ended."""

    def __init__(self, message: str, part: str) -> None:
        super().__init__(message)
        self.part = part
        """The process whose log explains why."""


class Stack:
    """A context manager. Afterwards no process and, unless `keep_files` is set, no file is left."""

    def __init__(self, **settings: str) -> None:
        """`settings`: environment variables, which take precedence over the quick settings."""
        self.home = Path(tempfile.mkdtemp(prefix="amend-demo-"))
        ports = free_ports(dict.fromkeys(("AMEND_PORT", "AMEND_MLFLOW_PORT"), (LOOPBACK, "0")))
        self.url, self.mlflow_url = (f"http://{LOOPBACK}:{port}" for port in ports.values())
        self.mlflow_key = self.home / "mlflow.key"
        # Without the user's own settings of Amend and MLflow.
        own = {name: value for name, value in os.environ.items() if not name.startswith(("AMEND_", "MLFLOW_"))}
        self.environment = {**own, **QUICK_SETTINGS, **settings, "AMEND_HOME": str(self.home)}
        self.environment |= {name: str(port) for name, port in ports.items()}
        self.keep_files = False
        self.process: subprocess.Popen[bytes] | None = None
        self.guard: subprocess.Popen[bytes] | None = None
        """Kills it if the demo is killed."""

    @property
    def key(self) -> str:
        return (self.home / "admin.key").read_text().strip()

    def __enter__(self) -> Self:
        with (self.home / "up.log").open("wb") as log:
            # In its own session, since Ctrl-C is for the demo, which then stops it.
            self.process = subprocess.Popen(
                UP, env=self.environment, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True
            )
        self.guard = subprocess.Popen(GUARD, stdin=subprocess.PIPE, start_new_session=True)
        assert self.guard.stdin is not None
        self.guard.stdin.write(f"+{self.process.pid}\n".encode())
        self.guard.stdin.flush()
        return self

    def wait_until_ready(self, report: Callable[[float, str], None]) -> None:
        """Wait until all parts are ready, and report which are not. Raises NotReady after a timeout, or if it ends."""
        end = time.monotonic() + START_SECONDS
        with Client(self.url, "none", pauses=()) as client:
            while missing := self.missing(client):
                report(1 - len(missing) / len(PARTS), f"waiting for {', '.join(missing)}")
                self.check_running()
                if time.monotonic() > end:
                    raise NotReady(f"{missing[0]} was not ready after {START_SECONDS:.0f} s.", missing[0])
                time.sleep(POLL_SECONDS)

    def missing(self, client: Client) -> list[str]:
        """The parts that are not ready."""
        try:
            found = client.readiness()
        except UnreachableError:
            return list(PARTS)
        parts: dict[str, Health | None] = {name: getattr(found, name) for name in PARTS[1:]}
        return [name for name, part in parts.items() if part is not None and not part.ok]

    @property
    def is_running(self) -> bool:
        return self.process is not None and self.process.poll() is None

    def check_running(self) -> None:
        """Raise NotReady if the stack has ended."""
        if not self.is_running:
            raise NotReady("amend up has ended.", "up")

    def last_lines(self, part: str) -> list[str]:
        """The last lines of the log of a part."""
        for file in (self.home / "logs" / f"{part}.log", self.home / "up.log"):
            with suppress(OSError):
                return file.read_text(errors="replace").splitlines()[-LOG_LINES:]
        return []

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.process is not None and self.is_running:
            self.process.send_signal(signal.SIGTERM)
            try:
                self.process.wait(STOP_SECONDS)
            except subprocess.TimeoutExpired:
                self.process.kill()  # its guard ends its processes
                self.process.wait()
        if self.guard is not None and self.process is not None:
            self.guard.communicate(f"-{self.process.pid}\n".encode())
        if not self.keep_files:
            shutil.rmtree(self.home, ignore_errors=True)
