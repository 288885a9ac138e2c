"""Loaded by Schemathesis: how it writes bodies of the content types that it does not know."""

from __future__ import annotations

import json
from typing import Any

import schemathesis


@schemathesis.serializer(
    "application/x-ndjson", "application/vnd.apache.arrow.stream", "application/vnd.apache.parquet"
)
def as_it_is(_context: schemathesis.SerializationContext, value: Any) -> bytes:
    if isinstance(value, bytes):
        return value
    return (value if isinstance(value, str) else json.dumps(value)).encode("utf-8", "surrogatepass")
