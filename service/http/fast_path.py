"""The fast path: predictions and examples of callers whose key was checked a moment ago, answered before the framework
gets to work. Matching routes and solving dependencies takes several times as long as a prediction, and as long as
storing a thousand examples. Whatever is out of the ordinary (a new caller, an Idempotency-Key, a query, a header that
is there twice) goes on to the endpoint, which answers the same by the same functions.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable
from types import SimpleNamespace
from typing import NamedTuple

from fastapi import FastAPI
from starlette.exceptions import HTTPException
from starlette.types import Receive, Scope, Send

from core.errors import AmendError
from core.tables.keys import Scope as KeyScope
from service.context import Context
from service.examples.endpoints import store
from service.http import problems
from service.http.auth import Caller, find_recent
from service.http.middleware import limit_body
from service.http.unit_of_work import UnitOfWork
from service.predictions.predict import predict
from service.threads import run_for_body

PATH = re.compile(r"/v1/models/([a-z0-9_-]{1,63})/(predictions|examples)")


UNSUPPORTED_HEADERS = {b"idempotency-key", b"content-encoding"}
"""Requests with one of these headers are left to the endpoint."""


class FastRequest(NamedTuple):
    """A request whose body is there."""

    name: str
    headers: dict[bytes, bytes]
    body: bytes
    request_id: str
    caller: Caller
    app: FastAPI


async def predictions(request: FastRequest) -> tuple[int, bytes]:
    state = request.app.state
    return 200, await predict(request.body, request.name, request.caller, state.context, state.champions)


async def examples(request: FastRequest) -> tuple[int, bytes]:
    context: Context = request.app.state.context
    kind = request.headers.get(b"content-type", b"").decode("latin-1")
    write = UnitOfWork(context, request.request_id, None, b"")
    made = await run_for_body(
        request.body, lambda: store(request.name, kind, request.body, request.caller, context, write)
    )
    return made.status_code, bytes(made.body)


HANDLERS: dict[str, tuple[KeyScope, Callable[[FastRequest], Awaitable[tuple[int, bytes]]]]] = {
    "predictions": (KeyScope.READ, predictions),
    "examples": (KeyScope.INGEST, examples),
}
ROUTES = {what: SimpleNamespace(path=f"/v1/models/{{name}}/{what}") for what in HANDLERS}


class FastPath:
    """Middleware that answers what it can and passes on the rest."""

    def __init__(self, app: FastAPI) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        found = PATH.fullmatch(scope["path"]) if scope["type"] == "http" and scope["method"] == "POST" else None
        if found is None:
            await self.app(scope, receive, send)
            return
        headers, context = dict(scope["headers"]), self.app.state.context
        usual = len(headers) == len(scope["headers"]) and not scope["query_string"]
        usual = usual and UNSUPPORTED_HEADERS.isdisjoint(headers)
        caller = find_recent(headers.get(b"authorization", b""), context) if usual else None
        if caller is None:
            await self.app(scope, receive, send)
            return
        name, what = found.groups()
        scope["route"], scope["path_params"], scope["state"]["caller"] = ROUTES[what], {"name": name}, caller
        needed, handle = HANDLERS[what]
        try:
            context.rate_limit.admit(caller.key_id)
            caller.require(needed)
            length = headers.get(b"content-length", b"").decode("latin-1")
            body = await read_body(limit_body(receive, length, context.settings.max_body_bytes))
            if body is None:
                return
            request = FastRequest(name, headers, body, scope["state"]["request_id"], caller, self.app)
            status, content = await handle(request)
        except AmendError as error:
            await problems.on_amend_error(None, error)(scope, receive, send)
            return
        except HTTPException as error:
            await problems.on_http_error(None, error)(scope, receive, send)
            return
        described = [(b"content-type", b"application/json"), (b"content-length", str(len(content)).encode())]
        await send({"type": "http.response.start", "status": status, "headers": described})
        await send({"type": "http.response.body", "body": content})


async def read_body(receive: Receive) -> bytes | None:
    """The body of a request; None if it breaks off."""
    chunks = []
    while True:
        message = await receive()
        if message["type"] != "http.request":
            return None
        chunks.append(message.get("body", b""))
        if not message.get("more_body"):
            return chunks[0] if len(chunks) == 1 else b"".join(chunks)
