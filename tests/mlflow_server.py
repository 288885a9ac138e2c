"""A real MLflow server for tests, as `amend up` starts it, in about four seconds.

    with mlflow_server() as server:
        ...

It listens on a free port of 127.0.0.1, keeps runs and files in a temporary folder, and ends with the process that
started it. Start it in the main thread, as the servers of `tests/servers.py`.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx

from tests.servers import START_SECONDS, STOP_SECONDS, die_with_parent, free_port

PASSWORD = "of a test's server"
# MLflow's clients here, and in the processes that tests start, are let in
os.environ.update(MLFLOW_TRACKING_USERNAME="amend", MLFLOW_TRACKING_PASSWORD=PASSWORD)


class MlflowServer:
    """A server with a folder of its own. It can be stopped and started again, and then still knows everything."""

    def __init__(self) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="amend-mlflow-"))
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self.process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        log = self.folder / "log"
        command = [sys.executable, "-P", "-m", "amend.up.mlflow_server", str(self.folder), str(self.port)]
        with log.open("ab") as output:
            self.process = subprocess.Popen(
                command,
                cwd=self.folder,
                env={**os.environ, "AMEND_MLFLOW_PASSWORD": PASSWORD},
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                preexec_fn=die_with_parent,
            )
        end = time.monotonic() + START_SECONDS
        while not answers(self.url):
            if self.process.poll() is not None or time.monotonic() > end:
                raise RuntimeError(f"MLflow did not start:\n{log.read_text()}")
            time.sleep(0.1)

    def stop(self, how: signal.Signals = signal.SIGINT) -> None:
        """End the server and the processes that it started itself."""
        if self.process is None:
            return
        group = self.process.pid
        for wish in (how, signal.SIGKILL):
            try:
                os.killpg(group, wish)
            except ProcessLookupError:
                break
            try:
                self.process.wait(STOP_SECONDS)
            except subprocess.TimeoutExpired:
                continue
        self.process = None


def answers(url: str) -> bool:
    try:
        return httpx.get(f"{url}/health", timeout=2, verify=False).status_code == 200
    except httpx.HTTPError:
        return False


@contextmanager
def mlflow_server() -> Iterator[MlflowServer]:
    """A server that a test may stop and start."""
    server = MlflowServer()
    try:
        server.start()
        yield server
    finally:
        server.stop(signal.SIGKILL)  # nothing of it is kept: no need for the seconds of an orderly end
        shutil.rmtree(server.folder, ignore_errors=True)
