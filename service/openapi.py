"""The OpenAPI document: FastAPI's description of the endpoints, the shape of errors, and which fields are read-only."""

from typing import Any

from fastapi import FastAPI

from service.http import problems


def document_of(app: FastAPI) -> dict[str, Any]:
    """The document, generated on first use."""
    if not app.openapi_schema:
        document = FastAPI.openapi(app)
        shapes = problems.Problem.model_json_schema(ref_template="#/components/schemas/{model}")
        document["components"]["schemas"] |= {**shapes.pop("$defs"), "Problem": shapes}
        for schema in document["components"]["schemas"].values():  # doctests of the engine's classes
            if "description" in schema:
                schema["description"] = schema["description"].partition("\n\nExamples\n")[0]
        for operations in document["paths"].values():
            for operation in operations.values():
                operation["summary"] = operation["operationId"].replace("_", " ").capitalize().replace("onnx", "ONNX")
        mark_read_only(document)
    assert app.openapi_schema
    return app.openapi_schema


def mark_read_only(document: dict[str, Any]) -> None:
    """Mark fields of listed items as read-only unless the request that creates an item has them."""

    def properties(schema: dict[str, Any]) -> dict[str, Any]:
        if "$ref" in schema:
            schema = document["components"]["schemas"][schema["$ref"].rpartition("/")[2]]
        fields: dict[str, Any] = schema.get("properties", {})
        return fields

    for entry in document["paths"].values():
        page = properties(body_of(entry.get("get", {}).get("responses", {}).get("200", {})))
        if page.keys() != {"items", "next"}:
            continue
        given = properties(body_of(entry.get("post", {}).get("requestBody", {})))
        for several in given.values():
            given = {**given, **properties(several.get("items", {}))}  # a body of many, as that of examples
        for part in (page, properties(page["items"]["items"])):
            for name, schema in part.items():
                if name not in given:
                    schema["readOnly"] = True


def body_of(described: dict[str, Any]) -> dict[str, Any]:
    """The schema of a JSON body."""
    found: dict[str, Any] = described.get("content", {}).get("application/json", {}).get("schema", {})
    return found
