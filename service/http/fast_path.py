"""The fast path: handles the two most frequent requests before FastAPI does. FastAPI's routing and dependencies take
several times as long as a prediction, and as long as storing a thousand examples.

A request takes the fast path if all of these hold; any other request goes to the endpoint, which calls the same
functions and returns the same response:

- It is a POST to `/v1/models/{name}/predictions` or `/v1/models/{name}/examples`.
- The process has checked its API key within the last `AMEND_CACHE_SECONDS`. The first request with a key goes to the
  endpoint.
- It has no query string, so no `?source=...`.
- It has neither an `Idempotency-Key` nor a `Content-Encoding` header.
- No header is repeated.

The Python client adds examples and predicts without an Idempotency-Key, so that its requests take the fast path.
"""

import re
from collections.abc import Awaitable, Callable
from types import SimpleNamespace
from typing import NamedTuple

from fastapi import FastAPI
from starlette.exceptions import HTTPException
from starlette.types import Receive, Scope, Send

from core.errors import AmendError
from core.tables.keys import Scope as KeyScope
from service.examples.endpoints import store
from service.http import problems
from service.http.auth import Caller, find_cached_caller
from service.http.body_threads import run_for_body
from service.http.middleware import limit_body
from service.http.request_audit import Auditor, client_of
from service.http.unit_of_work import UnitOfWork
from service.predictions.predict import predict

PATH = re.compile(r"/v1/models/([a-z0-9_-]{1,63})/(predictions|examples)")


UNSUPPORTED_HEADERS = {b"idempotency-key", b"content-encoding"}
"""Headers that only the endpoint supports."""


class FastRequest(NamedTuple):
    """A request whose body was read."""

    name: str
    headers: dict[bytes, bytes]
    body: bytes
    auditor: Auditor
    caller: Caller
    app: FastAPI


async def predictions(request: FastRequest) -> tuple[int, bytes]:
    state = request.app.state
    write = UnitOfWork(request.auditor)
    response = await predict(request.body, request.name, request.caller, state.versions, write)
    return 200, response if isinstance(response, bytes) else bytes(response.body)


async def examples(request: FastRequest) -> tuple[int, bytes]:
    kind = request.headers.get(b"content-type", b"").decode("latin-1")
    write = UnitOfWork(request.auditor)
    versions = request.app.state.versions
    response = await run_for_body(
        request.body, lambda: store(request.name, kind, request.body, request.caller, versions, write)
    )
    return response.status_code, bytes(response.body)


HANDLERS: dict[str, tuple[KeyScope, Callable[[FastRequest], Awaitable[tuple[int, bytes]]]]] = {
    "predictions": (KeyScope.READ, predictions),
    "examples": (KeyScope.INGEST, examples),
}
ROUTES = {resource: SimpleNamespace(path=f"/v1/models/{{name}}/{resource}") for resource in HANDLERS}


class FastPath:
    """Middleware that handles the requests described above and passes on all others."""

    def __init__(self, app: FastAPI) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        match = PATH.fullmatch(scope["path"]) if scope["type"] == "http" and scope["method"] == "POST" else None
        if match is None:
            await self.app(scope, receive, send)
            return
        headers, context = dict(scope["headers"]), self.app.state.context
        eligible = len(headers) == len(scope["headers"]) and not scope["query_string"]
        eligible = eligible and UNSUPPORTED_HEADERS.isdisjoint(headers)
        caller = find_cached_caller(headers.get(b"authorization", b""), context) if eligible else None
        if caller is None:
            await self.app(scope, receive, send)
            return
        name, resource = match.groups()
        scope["route"], scope["path_params"], scope["state"]["caller"] = ROUTES[resource], {"name": name}, caller
        scope_needed, handle = HANDLERS[resource]
        try:
            context.rate_limit.admit(caller.key_id, caller.requests_per_second)
            caller.require(scope_needed)
            length = headers.get(b"content-length", b"").decode("latin-1")
            body = await read_body(limit_body(receive, length, context.settings.max_body_bytes))
            if body is None:
                return
            auditor = Auditor(context, scope["state"]["request_id"], client_of(scope))
            request = FastRequest(name, headers, body, auditor, caller, self.app)
            status, content = await handle(request)
        except AmendError as error:
            await problems.on_amend_error(None, error)(scope, receive, send)
            return
        except HTTPException as error:
            await problems.on_http_error(None, error)(scope, receive, send)
            return
        response_headers = [(b"content-type", b"application/json"), (b"content-length", str(len(content)).encode())]
        await send({"type": "http.response.start", "status": status, "headers": response_headers})
        await send({"type": "http.response.body", "body": content})


async def read_body(receive: Receive) -> bytes | None:
    """The body of a request; None if the client disconnects first."""
    chunks = []
    while True:
        message = await receive()
        if message["type"] != "http.request":
            return None
        chunks.append(message.get("body", b""))
        if not message.get("more_body"):
            return chunks[0] if len(chunks) == 1 else b"".join(chunks)
