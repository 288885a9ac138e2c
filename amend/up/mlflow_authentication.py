"""HTTP Basic authentication for MLflow, which has none by default. Anyone who can write to MLflow can store a model
whose code runs wherever it is loaded.

Browsers show a sign-in form, and MLflow's clients send MLFLOW_TRACKING_USERNAME and MLFLOW_TRACKING_PASSWORD.
"""

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
"""Available without a password, for health checks."""
REFUSAL = (
    f"Sign in to Amend's MLflow as {USER}. The password is in the file mlflow.key in AMEND_HOME (~/.amend). "
    "For MLflow's clients, set MLFLOW_TRACKING_USERNAME and MLFLOW_TRACKING_PASSWORD.\n"
)
HEADERS = [(b"content-type", b"text/plain"), (b"www-authenticate", b'Basic realm="Amend MLflow", charset="UTF-8"')]


class BasicAuthentication:
    """ASGI middleware that rejects requests without the password."""

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
        foreign = is_cross_site(scope.get("method", "GET"), dict(scope["headers"]))
        sent = decode_credentials(given[0]) if len(given) == 1 and not foreign else b""
        # compare_digest takes the same time however many characters match.
        return hmac.compare_digest(sent, self.expected) or (scope["type"] == "http" and scope["path"] == OPEN_PATH)


def is_cross_site(method: str, headers: Mapping[bytes, bytes]) -> bool:
    """Whether another site's page made the browser send this request, to which the browser adds the password.

    MLflow itself accepts requests from pages of every server on this machine. Following a link is allowed; submitting a
    form is not.
    """
    elsewhere = headers.get(b"sec-fetch-site") in (b"cross-site", b"same-site")
    follows_link = method in ("GET", "HEAD") and headers.get(b"sec-fetch-mode") == b"navigate"
    return elsewhere and not follows_link


def decode_credentials(header: bytes) -> bytes:
    """The user name and password in a header, as ``user:password``; empty if it is not a valid Basic header.

    >>> decode_credentials(b"Basic YW1lbmQ6c2VjcmV0")
    b'amend:secret'
    """
    scheme, _, encoded = header.partition(b" ")
    try:
        return base64.b64decode(encoded, validate=True) if scheme.lower() == b"basic" else b""
    except binascii.Error:
        return b""
