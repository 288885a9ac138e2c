"""What happens around every request: an id, a log line, a measurement, and a limit on the size of its body."""

from __future__ import annotations

import re
import time
import uuid

import structlog
from starlette.datastructures import Headers, MutableHeaders
from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from service import metrics, problems
from service.logs import request_line

REQUEST_ID = re.compile(r"[A-Za-z0-9._-]{1,64}")
QUIET = {"/healthz", "/readyz", "/metrics"}
"""Asked for every few seconds by machines; logged only when something is wrong."""


log = structlog.get_logger("service")


class Observed:
    """Gives each request an id (the caller's own, if it is a plain word), logs its end and measures it.

    A bug is answered here, so that also this answer carries the id, and the connection lives on.
    """

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return await self.app(scope, receive, send)
        given = Headers(scope=scope).get("x-request-id", "")
        request_id = given if REQUEST_ID.fullmatch(given) else uuid.uuid4().hex
        scope.setdefault("state", {})["request_id"] = request_id
        structlog.contextvars.clear_contextvars()
        structlog.contextvars.bind_contextvars(request_id=request_id)
        started, status = time.perf_counter(), 0

        async def sending(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                MutableHeaders(scope=message)["X-Request-ID"] = request_id
            await send(message)

        try:
            await self.app(scope, receive, sending)
        except Exception as error:
            log.error("bug", exc_info=error)
            if status:
                raise  # too late for another answer: the connection must end
            await problems.internal_error()(scope, receive, sending)
        finally:
            route = getattr(scope.get("route"), "path", "unknown")
            seconds = time.perf_counter() - started
            metrics.REQUESTS.labels(scope["method"], route, str(status)).inc()
            metrics.SECONDS.labels(scope["method"], route).observe(seconds)
            if route not in QUIET or status >= 400:
                request_line(request_id, scope["method"], route, status, seconds)


class Limited:
    """Refuses bodies above a size: by what they announce, else when they get there."""

    def __init__(self, app: ASGIApp, limit: int) -> None:
        self.app = app
        self.limit = limit

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return await self.app(scope, receive, send)
        announced = Headers(scope=scope).get("content-length", "")
        seen = int(announced) if announced.isdecimal() and len(announced) < 20 else 0
        too_large = seen > self.limit
        seen = 0

        async def receiving() -> Message:
            nonlocal seen
            message = await receive()
            seen += len(message.get("body", b""))
            if too_large or seen > self.limit:
                raise HTTPException(413, f"A body may have {self.limit} bytes at most; send smaller batches.")
            return message

        return await self.app(scope, receiving, send)
