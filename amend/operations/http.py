"""The bare verbs of HTTP, with JSON in and out.

For bodies that somebody else wrote (the ``amend`` command sends files and specs as they are), and for what `operations`
does not know.
"""

from __future__ import annotations

from typing import Any

import httpx

from amend.sansio import Call, Caller, Flow, Params, make_call, operation


class HttpMethods(Caller):
    """Calls by path; errors and repetitions as for all others."""

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
        """Any call: its successful answer."""
        return self.send(make_call(method, path, json, params, content, content_type, accept))

    @operation
    def get(self, path: str, /, **params: str | int | float | bool | None) -> Flow[Any]:
        return self.ask(Any, "GET", path, **params)

    @operation
    def post(
        self, path: str, json: Any = None, *, content: bytes | None = None, content_type: str | None = None
    ) -> Flow[Any]:
        response = yield from self.send(make_call("POST", path, json, content=content, content_type=content_type))
        return self.read(Any, response)

    @operation
    def patch(self, path: str, json: Any) -> Flow[Any]:
        return self.ask(Any, "PATCH", path, json)

    @operation
    def delete(self, path: str) -> Flow[None]:
        yield from self.send(Call("DELETE", path))
