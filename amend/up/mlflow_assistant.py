"""Keeps MLflow's assistant closed. On a first visit it opens over a third of the window and asks for a language model.

MLflow has no setting for this. Its pages remember in the browser's local storage that the assistant was opened once, so
this module writes that entry. The key is not a public interface of MLflow.
"""

from amend.up.mlflow_authentication import Application, Message, Receive, Send

AUTO_OPEN_SCRIPT = b'<script>localStorage.setItem("mlflow.assistant.fab.autoOpenedOnFirstLoad_v1", "true")</script>'
DROPPED_HEADERS = (b"content-length", b"etag", b"last-modified")
"""Headers that describe the original page and not the modified one."""


class QuietAssistant:
    """ASGI middleware that marks the assistant as already opened in MLflow's start page."""

    def __init__(self, app: Application) -> None:
        self.app = app

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or (scope["method"], scope["path"]) != ("GET", "/"):
            return await self.app(scope, receive, send)
        started: Message = {}
        body = b""

        async def send_modified(message: Message) -> None:
            nonlocal body
            if message["type"] == "http.response.start":
                started.update(message)
                return
            body += message.get("body", b"")
            if not message.get("more_body"):
                page = body.replace(b"<head>", b"<head>" + AUTO_OPEN_SCRIPT, 1)
                kept = [header for header in started["headers"] if header[0].lower() not in DROPPED_HEADERS]
                await send({**started, "headers": [*kept, (b"content-length", str(len(page)).encode())]})
                await send({"type": "http.response.body", "body": page})

        return await self.app(scope, receive, send_modified)
