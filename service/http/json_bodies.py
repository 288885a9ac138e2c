"""Bodies of JSON that become Python objects as a whole: all but examples and predictions."""

from __future__ import annotations

import json
from typing import Any

from starlette.requests import Request
from starlette.types import Message, Scope

from core.errors import Invalid, Malformed

MAX_JSON_BYTES = 8 * 2**20
"""Of such a body: as objects it is many times as large."""


class ReadRequest(Request):
    """A request whose body is there already."""

    def __init__(self, scope: Scope, body: bytes, parsed: Any = None) -> None:
        async def receive() -> Message:
            return {"type": "http.request", "body": body, "more_body": False}

        super().__init__(scope, receive)
        self.parsed = parsed

    async def json(self) -> Any:
        return self.parsed


def parse_json(body: bytes) -> Any:
    """What a body says; Invalid if a field is there twice, of which nobody knows which one is meant."""
    try:
        return json.loads(body, object_pairs_hook=without_repetition)
    except (ValueError, RecursionError):
        raise Malformed("body_malformed", "The body is not valid JSON.") from None


def without_repetition(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        names = [name for name, _ in pairs]
        repeated = next(name for name in names if names.count(name) > 1)
        raise Invalid.at((repeated,), "request_invalid", "is there more than once")
    return found


def refuse_fields(body: bytes) -> None:
    """Invalid if a body says something to an endpoint that takes none."""
    try:
        found = parse_json(body) if body.strip() else None
    except Malformed:
        found = body
    if isinstance(found, dict) and found:
        raise Invalid.at((next(iter(found)),), "request_invalid", "is not known here; this takes no body")
    if found not in (None, {}):
        raise Invalid("request_invalid", "This takes no body.")
