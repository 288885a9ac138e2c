"""MLflow behind a user name and a password. It has none of its own, and whoever may write to it can leave a model there
that runs their code where it is loaded.

It is asked for as HTTP has it (Basic): browsers show a form, and MLflow's own clients send what they find in
MLFLOW_TRACKING_USERNAME and MLFLOW_TRACKING_PASSWORD.
"""

from __future__ import annotations

import base64
import binascii
import hmac
from collections.abc import Awaitable, Callable, Mapping, MutableMapping
from typing import Any

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
Application = Callable[[Message, Receive, Send], Awaitable[None]]

USER = "amend"
OPEN_PATH = "/health"
"""For health checks, without a password: it reveals nothing else."""
REFUSAL = (
    f"MLflow of Amend: sign in as {USER}. amend up keeps the password in mlflow.key in its home folder (~/.amend). "
    "MLflow's clients read MLFLOW_TRACKING_USERNAME and MLFLOW_TRACKING_PASSWORD.\n"
)
HEADERS = [(b"content-type", b"text/plain"), (b"www-authenticate", b'Basic realm="MLflow of Amend", charset="UTF-8"')]


class BasicAuthentication:
    """An ASGI application that answers nobody who does not send the password."""

    def __init__(self, app: Application, password: str) -> None:
        self.app = app
        self.expected = f"{USER}:{password}".encode()

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan" or self.admits(scope):
            await self.app(scope, receive, send)
        elif scope["type"] == "http":
            await send({"type": "http.response.start", "status": 401, "headers": HEADERS})
            await send({"type": "http.response.body", "body": REFUSAL.encode()})
        else:
            await send({"type": "websocket.close", "code": 1008})

    def admits(self, scope: Message) -> bool:
        given = [value for name, value in scope["headers"] if name == b"authorization"]
        foreign = is_of_another_page(scope.get("method", "GET"), dict(scope["headers"]))
        sent = decode_credentials(given[0]) if len(given) == 1 and not foreign else b""
        # in the same time, however much of it is right
        return hmac.compare_digest(sent, self.expected) or (scope["type"] == "http" and scope["path"] == OPEN_PATH)


def is_of_another_page(method: str, headers: Mapping[bytes, bytes]) -> bool:
    """Whether a browser, which sends the password by itself, was told to ask by a page that is not MLflow's: MLflow
    would answer those of every server on this machine. That somebody follows a link from there is fine, a form that a
    page sends is not."""
    elsewhere = headers.get(b"sec-fetch-site") in (b"cross-site", b"same-site")
    follows_link = method in ("GET", "HEAD") and headers.get(b"sec-fetch-mode") == b"navigate"
    return elsewhere and not follows_link


def decode_credentials(header: bytes) -> bytes:
    """The user name and password in a header, with a colon between them; nothing if it has another form.

    >>> decode_credentials(b"Basic YW1lbmQ6c2VjcmV0")
    b'amend:secret'
    """
    scheme, _, encoded = header.partition(b" ")
    try:
        return base64.b64decode(encoded, validate=True) if scheme.lower() == b"basic" else b""
    except binascii.Error:
        return b""
