"""OpenAPI descriptions of request bodies that the service parses itself, without pydantic."""

from typing import Any

Schema = dict[str, Any]
"""A JSON schema or another part of an OpenAPI document."""


def describe_body(
    name: str, items: Schema, example: Schema, others: Schema | None = None, formats: Schema | None = None
) -> Schema:
    """The `requestBody` of an endpoint whose JSON has a list called `name`.

    `others` are optional fields; `formats` are content types besides JSON.
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
