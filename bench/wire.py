"""Child processes and a cheap HTTP client for the benchmarks of a running service.

The client shares the machine with the server it measures, so it sends requests that were built beforehand over
keep-alive sockets and reads no more of an answer than it must.
"""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.servers import die_with_parent, free_port

START_SECONDS = 60
STOP_SECONDS = 15
LENGTH = re.compile(rb"content-length: *(\d+)", re.IGNORECASE)


class Connection:
    """One keep-alive connection to a server on this machine."""

    def __init__(self, port: int) -> None:
        self.socket = socket.create_connection(("127.0.0.1", port))
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def send(self, request: bytes) -> bytes:
        """The body of the response. Raises RuntimeError unless the status is 2xx."""
        self.socket.sendall(request)
        data = self.receive()
        while (end := data.find(b"\r\n\r\n")) < 0:
            data += self.receive()
        head, body = data[:end], data[end + 4 :]
        length = LENGTH.search(head)
        size = int(length[1]) if length else 0
        while len(body) < size:
            body += self.receive()
        if not head.startswith(b"HTTP/1.1 2"):
            raise RuntimeError(f"{head.decode()}\n{body.decode()}")
        return body

    def receive(self) -> bytes:
        data = self.socket.recv(1 << 16)
        if not data:
            raise RuntimeError("the server closed the connection")
        return data

    def close(self) -> None:
        self.socket.close()


def request(path: str, body: bytes, content_type: str = "application/json", key: str = "") -> bytes:
    """The bytes of a POST, ready to be sent."""
    lines = [
        f"POST {path} HTTP/1.1",
        "Host: 127.0.0.1",
        f"Content-Type: {content_type}",
        f"Content-Length: {len(body)}",
        *([f"Authorization: Bearer {key}"] if key else []),
    ]
    return "\r\n".join([*lines, "", ""]).encode() + body


@dataclass(frozen=True)
class Service:
    """Amend's service as a process of its own."""

    port: int
    key: str
    environment: Mapping[str, str]
    process: int
    """Its id."""

    def post(self, path: str, body: dict[str, Any]) -> dict[str, Any]:
        connection = Connection(self.port)
        answer = connection.send(request(path, json.dumps(body).encode(), key=self.key))
        connection.close()
        return json.loads(answer)


@contextmanager
def amend(home: Path, database: str = "", processes: int = 1) -> Iterator[Service]:
    """Run the service with default settings; without a database URL, on SQLite in the home folder."""
    port = free_port()
    settings = {"AMEND_HOME": str(home), "AMEND_DATABASE_URL": database, "AMEND_PORT": str(port)}
    settings["AMEND_PROCESSES"] = str(processes)
    ours = {name: value for name, value in os.environ.items() if not name.startswith("AMEND_")}
    environment = {**ours, **settings}
    home.mkdir(parents=True, exist_ok=True)
    python = [sys.executable, "-P", "-m"]
    subprocess.run([*python, "migrations"], env=environment, cwd=home, check=True, stdout=subprocess.DEVNULL)
    with child([*python, "service"], home, environment, port, "/healthz") as process:
        yield Service(port, (home / "admin.key").read_text().strip(), settings, process)


@contextmanager
def child(command: list[str], folder: Path, environment: Mapping[str, str], port: int, path: str) -> Iterator[int]:
    """Run a server until the block ends; returns its id. The block starts once a GET request of the path succeeds."""
    log = folder / "server.log"
    with log.open("wb") as file:
        process = subprocess.Popen(
            command,
            cwd=folder,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=file,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            preexec_fn=die_with_parent,
        )
    try:
        end = time.monotonic() + START_SECONDS
        while not answers(port, path):
            if process.poll() is not None or time.monotonic() > end:
                raise RuntimeError(f"{' '.join(command)} did not start:\n{log.read_text()}")
            time.sleep(0.1)
        yield process.pid
    finally:
        stop(process)


def stop(process: subprocess.Popen[bytes]) -> None:
    """Stop a process and its children."""
    if process.poll() is None:
        os.killpg(process.pid, signal.SIGTERM)
        try:
            process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def answers(port: int, path: str) -> bool:
    try:
        connection = Connection(port)
        connection.send(f"GET {path} HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n".encode())
        connection.close()
    except (OSError, RuntimeError):
        return False
    return True
