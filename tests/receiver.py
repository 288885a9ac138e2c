"""Somebody who is told of events: a small HTTP server that checks signatures and answers as it is told to."""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


class Receiver:
    """What came, in its order."""

    def __init__(self, port: int) -> None:
        self.url = f"http://127.0.0.1:{port}/hook?team=a"
        self.port = port
        self.status = 204
        self.headers: dict[str, str] = {}
        self.got: list[tuple[dict[str, str], bytes]] = []

    def events(self, type: str) -> list[dict[str, Any]]:
        """The data of the events of a type."""
        bodies = [json.loads(body) for _, body in self.got]
        return [body["data"] for body in bodies if body["type"] == type]


def is_signed(secret: str, headers: dict[str, str], body: bytes) -> bool:
    """As the convention has it, without a line of ours."""
    key = base64.b64decode(secret.split("_", 1)[1])
    text = b".".join([headers["webhook-id"].encode(), headers["webhook-timestamp"].encode(), body])
    expected = base64.b64encode(hmac.new(key, text, hashlib.sha256).digest()).decode()
    return headers["webhook-signature"].split(" ") == [f"v1,{expected}"]


@contextmanager
def receiving() -> Iterator[Receiver]:
    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            receiver.got.append(({name.lower(): value for name, value in self.headers.items()}, body))
            self.send_response(receiver.status)
            for name, value in receiver.headers.items():
                self.send_header(name, value)
            self.end_headers()

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        receiver = Receiver(server.server_port)
        threading.Thread(target=server.serve_forever, daemon=True).start()
        try:
            yield receiver
        finally:
            server.shutdown()
