"""The express lane: predictions for callers who are known by now, answered before the framework gets to work.

Matching routes and solving dependencies takes several times as long as a prediction. Whatever is out of the ordinary
(a new caller, an Idempotency-Key) goes on to the endpoint, which answers the same.
"""

from __future__ import annotations

import hashlib
import re
from types import SimpleNamespace

from fastapi import FastAPI
from starlette.types import Receive, Scope, Send

from core.errors import AmendError, TooLarge
from core.keys.table import Scope as KeyScope
from service import problems
from service.auth import Caller
from service.context import Context
from service.predictions.answers import answer

PATH = re.compile(r"/v1/models/([a-z0-9_-]{1,63})/predictions")
ROUTE = SimpleNamespace(path="/v1/models/{name}/predictions")


class Express:
    """Middleware that answers what it can and passes on the rest."""

    def __init__(self, app: FastAPI) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        found = PATH.fullmatch(scope["path"]) if scope["type"] == "http" and scope["method"] == "POST" else None
        caller = known(scope, self.app.state.context) if found else None
        if found is None or caller is None:
            await self.app(scope, receive, send)
            return
        scope["route"] = ROUTE
        context: Context = self.app.state.context
        try:
            caller.require(KeyScope.READ)
            body = await whole(receive, context.settings.max_body_bytes)
            if body is None:
                return
            content = await answer(body, found[1], caller, context, self.app.state.champions)
        except AmendError as error:
            await problems.on_amend_error(None, error)(scope, receive, send)
            return
        headers = [(b"content-type", b"application/json"), (b"content-length", str(len(content)).encode())]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": content})


def known(scope: Scope, context: Context) -> Caller | None:
    """The caller, if the key was checked a moment ago and the request is an ordinary one."""
    authorization = b""
    for name, value in scope["headers"]:
        if name == b"authorization":
            authorization = value
        elif name in (b"idempotency-key", b"content-encoding"):
            return None
    if not authorization.startswith(b"Bearer "):
        return None
    caller: Caller | None = context.callers.get(hashlib.sha256(authorization[7:]).digest())
    return caller


async def whole(receive: Receive, limit: int) -> bytes | None:
    """The body of a request; None if it breaks off."""
    parts, size = [], 0
    while True:
        message = await receive()
        if message["type"] != "http.request":
            return None
        parts.append(message.get("body", b""))
        size += len(parts[-1])
        if size > limit:
            raise TooLarge("body_too_large", f"A body may have {limit} bytes at most; send smaller batches.")
        if not message.get("more_body"):
            return parts[0] if len(parts) == 1 else b"".join(parts)
