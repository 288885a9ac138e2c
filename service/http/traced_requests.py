"""A span for each request, if traces are on."""

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from core import tracing


class TracedRequests:
    """Continues the trace of the caller (`traceparent`), or begins one."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return await self.app(scope, receive, send)
        parent = next((value.decode("latin-1") for name, value in scope["headers"] if name == b"traceparent"), None)
        status = 0

        async def send_recorded(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            await send(message)

        with tracing.span(scope["method"], parent, server=True) as span:
            assert span is not None
            try:
                await self.app(scope, receive, send_recorded)
            finally:
                route = getattr(scope.get("route"), "path", None)
                span.update_name(f"{scope['method']} {route}" if route else scope["method"])
                known = {"http.request.method": scope["method"], "http.route": route}
                known |= {"http.response.status_code": status, "amend.request_id": scope["state"]["request_id"]}
                span.set_attributes({key: value for key, value in known.items() if value is not None})
                if status >= 500 or not status:
                    tracing.mark_failed(str(status or "no response"))
