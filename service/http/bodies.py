"""What OpenAPI says of bodies that are parsed by hand."""

from __future__ import annotations

from typing import Any

Schema = dict[str, Any]
"""A part of an OpenAPI document."""


def describe_body(
    name: str, items: Schema, example: Schema, others: Schema | None = None, formats: Schema | None = None
) -> Schema:
    """The entry of an endpoint whose JSON has a list called `name`.

    `others` are fields that may be missing, `formats` what else a body may be.
    """
    listed = {"type": "array", "minItems": 1, **items}
    schema = {
        "type": "object",
        "required": [name],
        "additionalProperties": False,
        "properties": {name: listed, **(others or {})},
    }
    content = {"application/json": {"schema": schema, "example": example}, **(formats or {})}
    return {"requestBody": {"required": True, "content": content}}
