"""A stand-in that answers as it is told to and remembers what it was asked: for what the client alone decides."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from amend import Client, cli
from amend.commands import connection
from tests.amend.clients import Awaited, Connect


@dataclass
class Asked:
    method: str
    path: str
    headers: dict[str, str]
    body: bytes

    def json(self) -> Any:
        return json.loads(self.body)


@dataclass
class StandIn:
    """Answers are used up in order; the last one stays."""

    url: str = ""
    answers: list[tuple[int, Any]] = field(default_factory=list)
    asked: list[Asked] = field(default_factory=list)

    def answer(self, *answers: Any, status: int = 200) -> None:
        self.answers = [(status, answer) for answer in answers]

    def run(self, *arguments: str, stdin: str | bytes | None = None) -> Result:
        """Run ``amend arguments...`` against this service."""
        return CliRunner().invoke(cli.app, [*arguments, "--url", self.url, "--key", "amend_1_secret"], input=stdin)


@pytest.fixture
def stand_in(monkeypatch: pytest.MonkeyPatch) -> Iterator[StandIn]:
    service = StandIn()

    class Handler(BaseHTTPRequestHandler):
        def answer(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            service.asked.append(Asked(self.command, self.path, dict(self.headers), body))
            status, answer = service.answers.pop(0) if len(service.answers) > 1 else service.answers[0]
            content = answer if isinstance(answer, bytes) else json.dumps(answer).encode()
            self.send_response(status)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        do_GET = do_PUT = do_POST = do_PATCH = do_DELETE = answer  # noqa: N815

        def log_message(self, format: str, *args: Any) -> None:
            pass

    monkeypatch.setattr(connection, "RETRY_SECONDS", (0.0, 0.0, 0.0))
    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        service.url = f"http://127.0.0.1:{server.server_address[1]}"
        # A short poll, as shutting down waits for one.
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
        thread.start()
        yield service
        server.shutdown()
        thread.join()


@pytest.fixture(params=[Client, Awaited], ids=["sync", "async"])
def connect(request: pytest.FixtureRequest) -> Iterator[Connect]:
    """Makes clients of one kind, which end with the test."""
    made = []

    def connected(*arguments: Any, **options: Any) -> Any:
        made.append(request.param(*arguments, **options))
        return made[-1]

    yield connected
    for client in made:
        client.close()
