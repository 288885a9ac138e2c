"""Plain HTTP requests, for prepared bodies (the ``amend`` command sends files and specs unchanged), and for endpoints
that the other operations do not cover.
"""

from __future__ import annotations

from typing import Any

import httpx

from amend.client_methods import operation
from amend.requests import Call, Caller, Flow, Params, make_call


class HttpMethods(Caller):
    @operation
    def request(
        self,
        method: str,
        path: str,
        *,
        params: Params | None = None,
        json: Any = None,
        content: bytes | None = None,
        content_type: str | None = None,
        accept: str | None = None,
    ) -> Flow[httpx.Response]:
        """Send any request and return the successful response."""
        return self.send(make_call(method, path, json, params, content, content_type, accept))

    @operation
    def get(self, path: str, /, **params: str | int | float | bool | None) -> Flow[Any]:
        return self.ask(Any, "GET", path, **params)

    @operation
    def post(self, path: str, json: Any = None) -> Flow[Any]:
        return self.ask(Any, "POST", path, json)

    @operation
    def patch(self, path: str, json: Any) -> Flow[Any]:
        return self.ask(Any, "PATCH", path, json)

    @operation
    def delete(self, path: str) -> Flow[None]:
        yield from self.send(Call("DELETE", path))
