"""A way to the service on which answers get lost: the service has acted, and its caller does not know."""

from __future__ import annotations

import http.client
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

KEPT = ("Authorization", "Content-Type", "Content-Length", "Idempotency-Key", "Accept")


class Lossy:
    """A proxy. It loses the next `lose` answers and half of the next `cut`, and answers the next `refuse` requests with
    503 itself.
    """

    def __init__(self, port: int) -> None:
        self.port = port
        self.url = ""
        self.lose = 0
        self.refuse = 0
        self.cut = 0
        self.keys: list[str | None] = []
        """The Idempotency-Key of each request that it passed on."""

    def passed_on(self, request: BaseHTTPRequestHandler) -> tuple[int, bytes]:
        body = request.rfile.read(int(request.headers.get("Content-Length") or 0))
        self.keys.append(request.headers.get("Idempotency-Key"))
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=30)
        try:
            headers = {name: request.headers[name] for name in KEPT if name in request.headers}
            connection.request(request.command, request.path, body, headers)
            answer = connection.getresponse()
            return answer.status, answer.read()
        finally:
            connection.close()


@contextmanager
def lossy(port: int, listen: int = 0) -> Iterator[Lossy]:
    """A proxy to a port of this machine, at a free port or the given one."""
    proxy = Lossy(port)

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def handle_request(self) -> None:
            if proxy.refuse:
                proxy.refuse -= 1
                self.rfile.read(int(self.headers.get("Content-Length") or 0))
                self.answer(503, b"")
                return
            status, content = proxy.passed_on(self)
            if proxy.lose:
                proxy.lose -= 1
                self.close_connection = True
                return
            self.answer(status, content)

        def answer(self, status: int, content: bytes) -> None:
            self.send_response(status)
            if status != 204:
                self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            if proxy.cut:
                proxy.cut -= 1
                self.close_connection = True
                content = content[: len(content) // 2]
            self.wfile.write(content)

        do_GET = do_POST = do_PATCH = do_DELETE = handle_request  # noqa: N815

        def log_message(self, format: str, *args: Any) -> None:
            pass

    class Server(ThreadingHTTPServer):
        daemon_threads = True

    with Server(("127.0.0.1", listen), Handler) as server:
        proxy.url = f"http://127.0.0.1:{server.server_address[1]}"
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
        thread.start()
        yield proxy
        server.shutdown()
        thread.join()
