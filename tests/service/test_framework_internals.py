"""FastAPI and uvicorn still have the undocumented attributes that the service uses.

If a test fails after an upgrade, its message says which promise of the service is broken and which module to adjust.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable, Coroutine
from typing import Annotated, Any

import httpx
import pytest
from fastapi import APIRouter, Depends, FastAPI, Request
from fastapi.routing import APIRoute
from pydantic import BaseModel
from starlette.responses import Response
from uvicorn import Config
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle
from uvicorn.server import ServerState

from service.http import fastapi_internals as internals
from service.http.connection_limits import LimitedProtocol
from service.http.json_bodies import ReadRequest


class Body(BaseModel):
    needed: int
    optional: int = 0


def limit_of(limit: int = 10) -> int:
    return limit


def endpoint(body: Body, q: str, limit: Annotated[int, Depends(limit_of)]) -> None: ...


def test_fastapi_exposes_the_query_parameters_of_a_route() -> None:
    found = internals.query_parameters(APIRoute("/{q2}", endpoint, methods=["POST"]))
    assert found == {"q", "limit"}, "unknown query parameters would be accepted, or known ones rejected (routes.py)"


def test_fastapi_exposes_the_dependencies_of_a_route() -> None:
    found = list(internals.dependency_calls(APIRoute("/", endpoint, methods=["POST"])))
    assert found == [limit_of], "scopes would be checked only after the body was parsed (routes.py)"


def test_fastapi_exposes_the_body_of_a_route() -> None:
    route, without = APIRoute("/", endpoint, methods=["POST"]), APIRoute("/", limit_of)
    assert (internals.has_body(route), internals.has_body(without)) == (True, False), (
        "JSON bodies would be rejected, or parsed without limits (routes.py)"
    )
    assert internals.required_body_fields(route) == ["needed"], "the error for an empty body would name wrong fields"


def test_fastapi_uses_the_json_that_the_service_has_parsed() -> None:
    class ParsedRoute(APIRoute):
        def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
            handle = super().get_route_handler()

            async def handle_parsed(request: Request) -> Response:
                return await handle(ReadRequest(request.scope, b"{}", {"needed": 7}))

            return handle_parsed

    router = APIRouter(route_class=ParsedRoute)

    @router.post("/")
    def show(body: Body) -> int:
        return body.needed

    app = FastAPI()
    app.include_router(router)

    async def post() -> Any:
        async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://test") as client:
            return (await client.post("/", json={"needed": 1})).json()

    assert asyncio.run(post()) == 7, "FastAPI parses bodies itself: repeated fields would be accepted (json_bodies.py)"


OVERRIDDEN = [
    name for name, value in vars(LimitedProtocol).items() if "super()." + name in inspect.getsource(LimitedProtocol)
]


@pytest.mark.parametrize("method", [*OVERRIDDEN, "send_400_response"])
def test_uvicorn_has_the_methods_that_the_protocol_overrides(method: str) -> None:
    assert hasattr(HttpToolsProtocol, method), f"the limits that {method} enforces have no effect (protocol.py)"


def test_uvicorn_has_the_attributes_that_the_protocol_reads() -> None:
    async def begin_request() -> HttpToolsProtocol:
        protocol = HttpToolsProtocol(Config(FastAPI()), ServerState(), {})
        protocol.on_message_begin()
        return protocol

    protocol = asyncio.run(begin_request())
    for name in ("transport", "flow", "cycle", "headers", "url", "connections", "loop"):
        assert name in vars(protocol), f"limits need {name} (protocol.py)"
    read = inspect.getsource(RequestResponseCycle.__init__)
    for name in ("response_started", "response_complete", "waiting_for_100_continue"):
        assert f"self.{name} =" in read, f"deadlines need the state {name} of a response (protocol.py)"
