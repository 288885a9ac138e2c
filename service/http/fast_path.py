"""The express lane: predictions and examples of callers who are known by now, dealt with before the framework gets to
work. Matching routes and solving dependencies takes several times as long as a prediction, and as long as storing
a thousand examples. Whatever is out of the ordinary (a new caller, an Idempotency-Key, a query, a header that is there
twice) goes on to the endpoint, which answers the same.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Awaitable, Callable
from types import SimpleNamespace
from typing import NamedTuple

from fastapi import FastAPI
from starlette.types import Receive, Scope, Send

from core.errors import AmendError, TooLarge
from core.tables.keys import Scope as KeyScope
from service.context import Context
from service.examples.endpoints import store
from service.http import problems
from service.http.auth import Caller
from service.http.unit_of_work import Writing
from service.predictions.predict import answer
from service.threads import work_on

PATH = re.compile(r"/v1/models/([a-z0-9_-]{1,63})/(predictions|examples)")


class Asked(NamedTuple):
    """A request whose body is there."""

    name: str
    headers: dict[bytes, bytes]
    body: bytes
    request_id: str
    caller: Caller
    app: FastAPI


async def predictions(asked: Asked) -> tuple[int, bytes]:
    state = asked.app.state
    return 200, await answer(asked.body, asked.name, asked.caller, state.context, state.champions)


async def examples(asked: Asked) -> tuple[int, bytes]:
    context: Context = asked.app.state.context
    kind = asked.headers.get(b"content-type", b"").decode("latin-1")
    write = Writing(context, asked.request_id, None, b"")
    made = await work_on(asked.body, lambda: store(asked.name, kind, asked.body, asked.caller, context, write))
    return made.status_code, bytes(made.body)


LANES: dict[str, tuple[KeyScope, Callable[[Asked], Awaitable[tuple[int, bytes]]]]] = {
    "predictions": (KeyScope.READ, predictions),
    "examples": (KeyScope.INGEST, examples),
}
ROUTES = {what: SimpleNamespace(path=f"/v1/models/{{name}}/{what}") for what in LANES}


class Express:
    """Middleware that answers what it can and passes on the rest."""

    def __init__(self, app: FastAPI) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        found = PATH.fullmatch(scope["path"]) if scope["type"] == "http" and scope["method"] == "POST" else None
        if found is None:
            await self.app(scope, receive, send)
            return
        headers, context = dict(scope["headers"]), self.app.state.context
        ordinary = len(headers) == len(scope["headers"]) and not scope["query_string"]
        caller = known(headers, context) if ordinary else None
        if caller is None:
            await self.app(scope, receive, send)
            return
        name, what = found.groups()
        scope["route"] = ROUTES[what]
        needs, lane = LANES[what]
        try:
            caller.require(needs)
            body = await whole(receive, headers, context.settings.max_body_bytes)
            if body is None:
                return
            asked = Asked(name, headers, body, scope["state"]["request_id"], caller, self.app)
            status, content = await lane(asked)
        except AmendError as error:
            await problems.on_amend_error(None, error)(scope, receive, send)
            return
        told = [(b"content-type", b"application/json"), (b"content-length", str(len(content)).encode())]
        await send({"type": "http.response.start", "status": status, "headers": told})
        await send({"type": "http.response.body", "body": content})


def known(headers: dict[bytes, bytes], context: Context) -> Caller | None:
    """The caller, if the key was checked a moment ago and the request is an ordinary one."""
    authorization = headers.get(b"authorization", b"")
    if b"idempotency-key" in headers or b"content-encoding" in headers or not authorization.startswith(b"Bearer "):
        return None
    caller: Caller | None = context.callers.get(hashlib.sha256(authorization[7:]).digest())
    return caller


async def whole(receive: Receive, headers: dict[bytes, bytes], limit: int) -> bytes | None:
    """The body of a request; None if it breaks off."""
    # what announces to be too large is not waited for
    announced = headers.get(b"content-length", b"")
    parts, size = [], int(announced) if announced.isdigit() and len(announced) < 20 else 0
    if size <= limit:
        size = 0
    while size <= limit:
        message = await receive()
        if message["type"] != "http.request":
            return None
        parts.append(message.get("body", b""))
        size += len(parts[-1])
        if size <= limit and not message.get("more_body"):
            return parts[0] if len(parts) == 1 else b"".join(parts)
    raise TooLarge("body_too_large", f"A body may have {limit} bytes at most; send smaller batches.")
