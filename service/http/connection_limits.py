"""Limits that uvicorn lacks: the size of headers, the time a client may take, the number of connections. Sending
headers requires no API key, so their cost is bounded here.

Only the client's time counts: no connection is closed while the service itself is not reading, or has not yet asked for
the body. This module subclasses a protocol of uvicorn whose methods are not a public interface
(`tests/service/test_framework_internals.py`).
"""

import asyncio
from functools import lru_cache
from http import HTTPStatus
from typing import Any

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from core.settings import Settings
from service.http import problems

MAX_HEAD_BYTES = 2**16
"""Limit for URL and headers together, and for bytes that are neither header nor body, such as chunk ends."""
MIN_BYTES_PER_SECOND = 500
"""Minimum rate of a body, slower than a modem. Without it, a client could send a body byte by byte forever."""
DRAIN_SECONDS = 120
"""Time to read the rest of a body after an early response: most clients read the response only after sending all."""


@lru_cache(maxsize=1)
def settings() -> Settings:
    return Settings()


class LimitedProtocol(HttpToolsProtocol):
    """One connection."""

    def __init__(self, *given: Any, **named: Any) -> None:
        super().__init__(*given, **named)
        self.patience = settings().client_timeout
        self._deadline: float | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._writing: asyncio.TimerHandle | None = None
        self._unused = 0
        """Bytes received since the last complete header or body data."""
        self._begun = False
        self._body_since: float | None = None
        """When the headers of the current request were complete; None if no body is awaited."""
        self._body_size = 0
        self._drain_until = 0.0
        self._too_large = False

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        if len(self.connections) > settings().max_connections:
            self.refuse(503, "too_many_connections", "Too many open connections. Try again later.")
            return
        self.expect(self.loop.time() + self.patience)

    def connection_lost(self, exc: Exception | None) -> None:
        for timer in (self._timer, self._writing):
            if timer is not None:
                timer.cancel()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if self.transport.is_closing():
            return
        self._unused += len(data)
        super().data_received(data)
        if self._unused > MAX_HEAD_BYTES and not self.transport.is_closing():
            self.refuse_head()
        elif self._deadline is None and self._unused:  # neither the start nor the end of a request
            self.expect(self.loop.time() + self.patience)

    # callbacks of the parser

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._begun = True
        self.expect(self.loop.time() + self.patience)

    def on_headers_complete(self) -> None:
        if len(self.url) + sum(len(name) + len(value) for name, value in self.headers) > MAX_HEAD_BYTES:
            self._too_large = True
            raise ValueError("headers too large")
        self._unused = 0
        super().on_headers_complete()
        self._body_since, self._body_size = self.loop.time(), 0
        self.expect(self._body_since + self.patience)

    def on_body(self, body: bytes) -> None:
        self._unused = 0
        self._body_size += len(body)
        assert self._body_since is not None
        if not self.cycle.response_complete:
            slowest = self._body_since + self._body_size / MIN_BYTES_PER_SECOND
            self._deadline = min(self.loop.time(), slowest) + self.patience
        else:
            self._deadline = min(self.loop.time() + self.patience, self._drain_until)
        super().on_body(body)

    def on_message_complete(self) -> None:
        self._unused, self._begun = 0, False
        self._body_since = self._deadline = None
        super().on_message_complete()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        if self._body_since is not None and self.cycle.response_complete:
            self._drain_until = self.loop.time() + DRAIN_SECONDS
            self.expect(self.loop.time() + self.patience)

    # deadlines

    def expect(self, deadline: float) -> None:
        """Close the connection at this time unless the client sends something first."""
        self._deadline = deadline
        if self._timer is not None and self._timer.when() > deadline:
            self._timer.cancel()
            self._timer = None
        if self._timer is None:
            self._timer = self.loop.call_at(deadline, self.check_deadline)

    def check_deadline(self) -> None:
        """Close the connection if the deadline has passed."""
        self._timer = None
        if self._deadline is None or self.transport.is_closing():
            return
        now = self.loop.time()
        answering = self.cycle is not None and not self.cycle.response_complete
        in_body = self._body_since is not None
        ours = self.flow.read_paused or (in_body and answering and self.cycle.waiting_for_100_continue)
        if ours or (answering and not in_body and not self._begun):
            self.expect(now + self.patience)
        elif now < self._deadline:
            self.expect(self._deadline)
        elif (in_body and answering and not self.cycle.response_started) or (self._begun and not in_body):
            part = "body" if in_body else "headers"
            self.refuse(408, "request_too_slow", f"Timed out waiting for the {part} of the request.")
        else:
            self.transport.close()

    def pause_writing(self) -> None:
        super().pause_writing()
        # a client that does not read its response keeps it in our memory
        self._writing = self.loop.call_later(max(self.patience, 60), self.transport.abort)

    def resume_writing(self) -> None:
        super().resume_writing()
        if self._writing is not None:
            self._writing.cancel()

    # error responses

    def send_400_response(self, msg: str) -> None:
        if self._too_large:
            self.refuse_head()
        else:
            self.refuse(400, "request_malformed", "The request is not valid HTTP/1.1.")

    def refuse_head(self) -> None:
        self.refuse(431, "headers_too_large", f"URL and headers exceed the limit of {MAX_HEAD_BYTES} bytes.")

    def refuse(self, status: int, code: str, detail: str) -> None:
        """Send an error response and close the connection."""
        body = bytes(problems.respond(status, code, detail).body)
        head = (
            f"HTTP/1.1 {status} {HTTPStatus(status).phrase}\r\ncontent-type: {problems.MEDIA_TYPE}\r\n"
            f"content-length: {len(body)}\r\nconnection: close\r\n\r\n"
        )
        responding = self.cycle is not None and self.cycle.response_started and not self.cycle.response_complete
        if not responding:  # otherwise the client would read it as part of the other response
            self.transport.write(head.encode() + body)
        self.transport.close()
