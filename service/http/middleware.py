"""What happens around every request: an id, a log line, a measurement, a limit on the size of its body; and that what
callers were told holds."""

from __future__ import annotations

import re
import time
from random import getrandbits

import structlog
from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from core.logs import current_request, request_line
from service import metrics
from service.http import problems

REQUEST_ID = re.compile(rb"[A-Za-z0-9._-]{1,64}")
PROBE_ROUTES = {"/healthz", "/readyz", "/metrics", "/v2/health/live", "/v2/health/ready"}
"""Polled by machines every few seconds; logged only when something is wrong."""
HIDING_STATUSES = {403, 404}
"""Statuses of answers about a model that may not exist for this caller: its name is not logged."""
UNCHANGING_PATHS = re.compile(r"/v1/models/[^/]+/(predictions|examples)")
"""Answers that tell of no job and no champion."""

log = structlog.get_logger("service")


class RequestLog:
    """Gives each request an id (the caller's own, if it is a plain word), logs its end and measures it.

    A bug that was answered ends here: passed on, it would end the connection too.
    """

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return await self.app(scope, receive, send)
        given = next((value for name, value in scope["headers"] if name == b"x-request-id"), b"")
        request_id = given.decode() if REQUEST_ID.fullmatch(given) else f"{getrandbits(128):032x}"
        scope.setdefault("state", {})["request_id"] = request_id
        current_request.set(request_id)
        started, status, answered = time.perf_counter(), 0, False

        async def send_noted(message: Message) -> None:
            nonlocal status, answered
            if message["type"] == "http.response.start":
                status = message["status"]
                message["headers"] = [*message.get("headers", ()), (b"x-request-id", request_id.encode())]
            await send(message)
            answered = message["type"] == "http.response.body" and not message.get("more_body")

        try:
            await self.app(scope, receive, send_noted)
        except Exception as error:
            log.error("bug", exc_info=error)
            if not status:
                await problems.on_bug(Request(scope), error)(scope, receive, send_noted)
            elif not answered:
                raise
        finally:
            # what was found without being an endpoint is a file of ours; its path can be written in endless ways
            # (a browser's question before a request from another page has the path of that request)
            found = 0 < status < 400 and scope["method"] != "OPTIONS"
            file = "file" if found else "unknown"
            route: str = getattr(scope.get("route"), "path", file)
            seconds = time.perf_counter() - started
            metrics.count_request(scope["method"], route, status, seconds)
            if route not in PROBE_ROUTES or status >= 400:
                caller = scope["state"].get("caller")
                # what names no model of the caller's may be anything
                model = scope.get("path_params", {}).get("name") if caller and status not in HIDING_STATUSES else None
                key = caller.key_id if caller else None
                request_line(request_id, scope["method"], route, status, seconds, key, model)


class MonotonicReads:
    """Once a caller was told of a job's end, a champion or an erasure, this process predicts with nothing older.

    Every answer counts but those to predictions and examples, which tell of none and come by the thousand: a list of
    those that do would soon lack one. All it costs is a look at the database by the next prediction.
    """

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if not scope.get("path", "").startswith("/v1/") or UNCHANGING_PATHS.fullmatch(scope["path"]):
            return await self.app(scope, receive, send)

        async def send_noted(message: Message) -> None:
            if message["type"] == "http.response.start":  # what is told was read before that
                scope["app"].state.context.champions.outdate()
            await send(message)

        return await self.app(scope, receive, send_noted)


class BodyLimit:
    """Refuses bodies above a size."""

    def __init__(self, app: ASGIApp, limit: int) -> None:
        self.app = app
        self.limit = limit

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            receive = limit_body(receive, Headers(scope=scope).get("content-length", ""), self.limit)
        await self.app(scope, receive, send)


def limit_body(receive: Receive, length: str, limit: int) -> Receive:
    """Refuse a body above a size: by the length that it announces, which is not waited for, else when it gets there."""
    seen = int(length) if length.isdecimal() and len(length) < 20 else 0
    if seen <= limit:
        seen = 0

    async def receive_limited() -> Message:
        nonlocal seen
        message: Message = {} if seen > limit else await receive()
        seen += len(message.get("body", b""))
        if seen > limit:
            raise HTTPException(413, f"A body may have {limit} bytes at most; send smaller batches.")
        return message

    return receive_limited
