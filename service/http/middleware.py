"""Middleware for every request: request id, log line, metrics, body size limit and monotonic reads."""

import re
import time
from random import getrandbits

import structlog
from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from core.logs import current_request, request_line
from service import prometheus_counters
from service.http import problems

REQUEST_ID = re.compile(rb"[A-Za-z0-9._-]{1,64}")
PROBE_ROUTES = {"/healthz", "/readyz", "/metrics", "/v2/health/live", "/v2/health/ready"}
"""Routes that monitoring polls every few seconds. Only their errors are logged."""
HIDING_STATUSES = {403, 404}
"""Statuses of responses about a model that the caller may not see. The name of the model is not logged."""
UNCHANGING_PATHS = re.compile(r"/v1/models/[^/]+/(predictions|examples)")
"""Responses that say nothing about jobs or the champion."""

log = structlog.get_logger("service")


class RequestLog:
    """Gives each request an id (the caller's `X-Request-ID` if it is valid), logs it and measures it.

    An exception for which a response was sent is not raised again, because uvicorn would close the connection.
    """

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return await self.app(scope, receive, send)
        own_id = next((value for name, value in scope["headers"] if name == b"x-request-id"), b"")
        request_id = own_id.decode() if REQUEST_ID.fullmatch(own_id) else f"{getrandbits(128):032x}"
        scope.setdefault("state", {})["request_id"] = request_id
        current_request.set(request_id)
        started, status, complete = time.perf_counter(), 0, False

        async def send_recorded(message: Message) -> None:
            nonlocal status, complete
            if message["type"] == "http.response.start":
                status = message["status"]
                message["headers"] = [*message.get("headers", ()), (b"x-request-id", request_id.encode())]
            await send(message)
            complete = message["type"] == "http.response.body" and not message.get("more_body")

        try:
            await self.app(scope, receive, send_recorded)
        except Exception as error:
            log.error("unhandled_exception", exc_info=error)
            if not status:
                await problems.on_unhandled_exception(Request(scope), error)(scope, receive, send_recorded)
            elif not complete:
                raise
        finally:
            # Paths of files and unknown paths get one label each: there are endless ways to write a path. OPTIONS
            # requests of browsers (CORS) have the path of the request that follows.
            is_file = 0 < status < 400 and scope["method"] != "OPTIONS"
            route: str = getattr(scope.get("route"), "path", "file" if is_file else "unknown")
            seconds = time.perf_counter() - started
            prometheus_counters.count_request(scope["method"], route, status, seconds)
            if route not in PROBE_ROUTES or status >= 400:
                caller = scope["state"].get("caller")
                # a name that is not a model of the caller may be personal data
                model = scope.get("path_params", {}).get("name") if caller and status not in HIDING_STATUSES else None
                key = caller.key_id if caller else None
                request_line(request_id, scope["method"], route, status, seconds, key, model)


class MonotonicReads:
    """After a response that may mention a new champion or a finished job or erasure, this process never predicts with
    an older version.

    Every response counts except those of predictions and examples, because a list of the responses that mention
    versions would soon be incomplete. The cost is one database query by the next prediction.
    """

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if not scope.get("path", "").startswith("/v1/") or UNCHANGING_PATHS.fullmatch(scope["path"]):
            return await self.app(scope, receive, send)

        async def send_recorded(message: Message) -> None:
            if message["type"] == "http.response.start":  # the content was read before this moment
                scope["app"].state.context.version_keys.outdate()
            await send(message)

        return await self.app(scope, receive, send_recorded)


ENCODERS = "/v1/encoders"
"""Path that ONNX files are uploaded to."""


class BodyLimit:
    """Rejects bodies above a size; encoders have a limit of their own."""

    def __init__(self, app: ASGIApp, limit: int, encoder_limit: int) -> None:
        self.app = app
        self.limit, self.encoder_limit = limit, encoder_limit

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            length = Headers(scope=scope).get("content-length", "")
            if scope["path"] == ENCODERS:
                receive = limit_body(receive, length, self.encoder_limit, "Raise AMEND_ENCODER_MAX_BYTES.")
            else:
                receive = limit_body(receive, length, self.limit)
        await self.app(scope, receive, send)


def limit_body(receive: Receive, length: str, limit: int, advice: str = "Send smaller batches.") -> Receive:
    """Reject a body above a size: by its Content-Length, before it is read, or while it is read."""
    seen = int(length) if length.isdecimal() and len(length) < 20 else 0
    if seen <= limit:
        seen = 0

    async def receive_limited() -> Message:
        nonlocal seen
        message: Message = {} if seen > limit else await receive()
        seen += len(message.get("body", b""))
        if seen > limit:
            raise HTTPException(413, f"The body exceeds the limit of {limit} bytes. {advice}")
        return message

    return receive_limited
