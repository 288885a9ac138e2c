"""Write the client's response types from the OpenAPI document, so that a field is declared once, in the service.

python -m tools.client_types           write amend/responses/__init__.py
python -m tools.client_types --check   exit with status 1 if that file is out of date (`make check` runs this)
"""

from __future__ import annotations

from keyword import iskeyword
from pathlib import Path
from typing import Any

from core.settings import Settings
from service.app import build
from service.openapi import document_of
from tools.generated import docstring, write_or_check

Schema = dict[str, Any]

TARGET = Path(__file__).parent.parent / "amend/responses/__init__.py"
SUFFIXES = ("Response", "Document")
"""A schema `VersionResponse` becomes the class `Version`."""
NAMES = {"ComponentStatus": "Health", "JobError": "Failure", "YearStatistics": "Year"} | {
    name: name
    for name in (
        "Audit",
        "Certificate",
        "Coefficient",
        "ColumnDrift",
        "DriftBin",
        "DriftRows",
        "GateComparison",
        "NamedCoefficient",
        "PredictionDrift",
        "Readiness",
        "RemovalPromise",
        "SegmentComparison",
        "SegmentDrift",
    )
}
"""Class names of schemas that have no such suffix. All other schemas become plain dictionaries: they belong to the
spec and the policy, which callers send as dictionaries as well."""
BASES = {
    "Added": "AddedMethods",
    "Analysis": "AnalysisMethods",
    "Replaced": "ReplacedMethods",
    "Erasure": "ErasureMethods",
    "Job": "JobMethods",
    "Predictions": "PredictionsMethods",
    "CreatedWebhook": "Webhook",
    "Decision": "Version",
    "ExportedExample": "Example",
    "IssuedKey": "Key",
    "Promoted": "Version",
    "Resumed": "Model",
    "SpeltReceipt": "Receipt",
}
"""Base classes: hand-written methods (amend/responses/methods.py), or the class that the service derives it from."""
DICTIONARIES = {"MlflowResponse", "ModelMlflowResponse"}
TYPED_DICTIONARIES = {"Receipt", "ReceiptModel", "SpeltReceipt"}
"""Classes that remain dictionaries, because their exact content is hashed."""
HEADER = '''"""Responses of the service as typed objects, with the names of the REST API.

Fields that this version of the client does not know are ignored, so that it keeps working with a newer service; states
and other words are plain text for the same reason. Generated from the OpenAPI document by tools/client_types.py: do not
edit this file; add methods in methods.py.
"""

from __future__ import annotations

from datetime import datetime
from typing import Any, NotRequired, TypedDict

import msgspec

from amend.responses.base import Page as Page
from amend.responses.base import Response
from amend.responses.base import ResponseList as ResponseList
from amend.responses.methods import (
    AddedMethods,
    AnalysisMethods,
    ErasureMethods,
    JobMethods,
    PredictionsMethods,
    ReplacedMethods,
)
'''
JSON_TYPES = ("application/json", "application/x-ndjson")
SCALARS = {"string": "str", "integer": "int", "number": "float", "boolean": "bool", "null": "None"}


class Generator:
    """The classes of one document."""

    def __init__(self, document: Schema) -> None:
        self.paths: Schema = document["paths"]
        self.schemas: Schema = document["components"]["schemas"]
        self.found: dict[str, Schema] = {}

    def generate(self) -> str:
        for path, operations in self.paths.items():
            if path.startswith("/v1/") or path == "/readyz":
                for operation in operations.values():
                    self.collect_responses(operation)
        # a base class is defined before the classes that extend it
        names = sorted(self.found, key=lambda name: (BASES.get(name) in self.found, name))
        classes = [self.class_of(name, self.found[name]) for name in names]
        return "\n\n".join([HEADER, *classes]) + "\n"

    def collect_responses(self, operation: Schema) -> None:
        for status, response in operation["responses"].items():
            if status.startswith("2"):
                content = response.get("content", {})
                # of NDJSON, the schema describes one line
                schema: Schema = next((content[kind].get("schema", {}) for kind in JSON_TYPES if kind in content), {})
                page = self.schemas.get(ref_of(schema) or "", {}).get("properties", {})
                self.type_of(page["items"] if page.keys() == {"items", "next"} else schema)

    def class_of(self, name: str, schema: Schema) -> str:
        dictionary = name in TYPED_DICTIONARIES
        base = BASES.get(name, "Response")
        inherited = self.found[base]["properties"] if base in self.found else {}
        required = set(schema.get("required", []))
        bases = BASES.get(name, "TypedDict") if dictionary else f"{base}, frozen=True, kw_only=True"
        lines = [f"class {name}({bases}):"]
        lines += docstring(schema.get("description", ""))
        for field, given in schema["properties"].items():
            if field in inherited:
                continue
            kind = self.type_of(given, within=name)
            if dictionary:
                lines.append(f"    {field}: {kind if field in required else f'NotRequired[{kind}]'}")
            else:
                missing = field not in required and "default" not in given
                lines.append(f"    {declaration(field, f'{kind} | None' if missing else kind, given)}")
            lines += docstring(given.get("description", ""))
        return "\n".join(lines)

    def type_of(self, schema: Schema, within: str = "") -> str:
        if name := ref_of(schema):
            return self.type_of_reference(name, within)
        if "anyOf" in schema or "oneOf" in schema:
            kinds = dict.fromkeys(self.type_of(part, within) for part in schema.get("anyOf") or schema["oneOf"])
            return " | ".join(sorted(kinds, key=lambda kind: kind == "None"))
        if "enum" in schema or "const" in schema:
            return "str"
        match schema.get("type"):
            case "array":
                return f"list[{self.type_of(schema.get('items', {}), within)}]"
            case "object":
                values = schema.get("additionalProperties")
                return f"dict[str, {self.type_of(values, within) if isinstance(values, dict) else 'Any'}]"
            case "string" if schema.get("format") == "date-time":
                return "datetime"
            case None:
                return "Any"
            case kind:
                return SCALARS[kind]

    def type_of_reference(self, name: str, within: str) -> str:
        schema = self.schemas[name]
        if "properties" not in schema:  # an enum: states are plain text, since a newer service may have more of them
            return self.type_of(schema)
        named = NAMES.get(name) or next((name.removesuffix(end) for end in SUFFIXES if name.endswith(end)), None)
        if named is None or name in DICTIONARIES or (within in TYPED_DICTIONARIES and named not in TYPED_DICTIONARIES):
            return "dict[str, Any]"
        if named not in self.found:
            self.found[named] = schema
            for part in schema["properties"].values():
                self.type_of(part, within=named)
        return named


def ref_of(schema: Schema) -> str | None:
    reference = schema.get("$ref")
    return None if reference is None else str(reference).rpartition("/")[2]


def declaration(field: str, kind: str, schema: Schema) -> str:
    """A field with its default: whatever may be null may be missing as well, in the response of an older service."""
    if kind.endswith(" | None | None"):
        kind = kind.removesuffix(" | None")
    default = repr(schema["default"]) if isinstance(schema.get("default"), (bool, int, float, str)) else ""
    if kind.endswith(" | None"):
        default = "None"
    if iskeyword(field):
        given = f"default={default}, " if default else ""
        return f'{field}_: {kind} = msgspec.field({given}name="{field}")'
    return f"{field}: {kind} = {default}" if default else f"{field}: {kind}"


if __name__ == "__main__":
    write_or_check(TARGET, Generator(document_of(build(Settings()))).generate())
