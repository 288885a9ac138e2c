"""JSON bodies that are parsed as a whole: those of all endpoints except examples and predictions."""

import json
from typing import Any

from starlette.requests import Request
from starlette.types import Message, Scope

from core.errors import Invalid, Malformed

MAX_JSON_BYTES = 8 * 2**20
"""Limit for such a body. Its Python objects are many times as large."""


class ReadRequest(Request):
    """A request whose body was already read, and perhaps parsed."""

    def __init__(self, scope: Scope, body: bytes, parsed: Any = None) -> None:
        async def receive() -> Message:
            return {"type": "http.request", "body": body, "more_body": False}

        super().__init__(scope, receive)
        self.parsed = parsed

    async def json(self) -> Any:
        return self.parsed


def parse_json(body: bytes) -> Any:
    """Parse a body. Raises Invalid for a repeated field, because it is ambiguous which value is meant."""
    try:
        return json.loads(body, object_pairs_hook=refuse_repetition)
    except (ValueError, RecursionError):
        raise Malformed("body_malformed", "The body is not valid JSON.") from None


def refuse_repetition(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    fields = dict(pairs)
    if len(fields) < len(pairs):
        names = [name for name, _ in pairs]
        repeated = next(name for name in names if names.count(name) > 1)
        raise Invalid.at((repeated,), "request_invalid", "was given more than once")
    return fields


def refuse_fields(body: bytes) -> None:
    """Raise Invalid if an endpoint without a body received one."""
    try:
        content = parse_json(body) if body.strip() else None
    except Malformed:
        content = body
    if isinstance(content, dict) and content:
        raise Invalid.at((next(iter(content)),), "request_invalid", "unknown field; this endpoint takes no body")
    if content not in (None, {}):
        raise Invalid("request_invalid", "This endpoint takes no body.")
