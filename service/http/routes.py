"""Route classes of the REST endpoints: what they check before FastAPI parses a request."""

import difflib
from collections.abc import Callable, Coroutine
from typing import Any

from fastapi import Request
from fastapi.routing import APIRoute
from starlette.responses import Response

from core.errors import Invalid, Unsupported
from core.settings import Settings
from service.context import context_of
from service.http.auth import ScopeCheck, authenticate
from service.http.decompression import decompress
from service.http.fastapi_internals import dependency_calls, has_body, query_parameters, required_body_fields
from service.http.json_bodies import MAX_JSON_BYTES, ReadRequest, parse_json, refuse_fields
from service.http.middleware import limit_body


class CheckedRoute(APIRoute):
    """A route that rejects unknown query parameters."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        handle = super().get_route_handler()
        known = query_parameters(self)

        async def handle_checked(request: Request) -> Response:
            await self.check_caller(request)
            check_query(request, known)
            return await handle(await self.check_body(request))

        return handle_checked

    async def check_caller(self, request: Request) -> None:
        """Called before anything else of the request is read."""

    async def check_body(self, request: Request) -> Request:
        """Called before the body is parsed. Returns the request to continue with."""
        return request


class AuthenticatedRoute(CheckedRoute):
    """A route that checks key, scopes and headers before it reads the body, so that the service decompresses and parses
    nothing for a caller without permission.
    """

    async def check_caller(self, request: Request) -> None:
        request.state.caller = caller = await authenticate(request)
        for call in dependency_calls(self):
            if isinstance(check := getattr(call, "__self__", None), ScopeCheck):
                caller.require(*check.scopes)

    @staticmethod
    def max_body_bytes(settings: Settings) -> int:
        """Size limit of a decompressed body that the endpoint reads itself."""
        return settings.max_body_bytes

    async def check_body(self, request: Request) -> Request:
        if "requestBody" in (self.openapi_extra or {}):
            return await decompress(request, self.max_body_bytes(context_of(request).settings))
        if not has_body(self):
            if request.method in ("GET", "HEAD") or is_empty(request):
                return request
            body = await read_within(request, MAX_JSON_BYTES)
            refuse_fields(body)
            return ReadRequest(request.scope, body)
        if is_empty(request):
            fields = " and ".join(map(repr, required_body_fields(self)))
            raise Invalid("request_invalid", f"The body is missing. Send a JSON object{fields and f' with {fields}'}.")
        if request.headers.get("content-type", "").partition(";")[0].strip().lower() != "application/json":
            raise Unsupported("content_type_unsupported", "The Content-Type of this body must be application/json.")
        body = await read_within(request, MAX_JSON_BYTES)
        return ReadRequest(request.scope, body, parse_json(body))


async def read_within(request: Request, limit: int) -> bytes:
    """The decompressed body of a request. Raises TooLarge before more than the limit is in memory."""
    length = request.headers.get("content-length", "")
    request = Request(request.scope, limit_body(request.receive, length, limit))
    return await (await decompress(request, limit)).body()


def is_empty(request: Request) -> bool:
    """Whether the headers announce an empty body or none."""
    return "transfer-encoding" not in request.headers and request.headers.get("content-length", "0") == "0"


def check_query(request: Request, known: set[str]) -> None:
    """Reject unknown and repeated query parameters, so that a misspelt filter is not silently ignored."""
    given = [name for name, _ in request.query_params.multi_items()]
    for name in given:
        if name not in known:
            near = difflib.get_close_matches(name, known, n=1)
            hint = f"did you mean {near[0]}? " if near else ""
            listed = f"Known parameters: {', '.join(sorted(known))}" if known else "This endpoint has no parameters"
            raise Invalid.at(("query", name), "query_invalid", f"unknown query parameter; {hint}{listed}")
        if given.count(name) > 1:
            raise Invalid.at(("query", name), "query_invalid", "was given more than once")
