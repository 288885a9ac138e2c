"""A request body -> a `Batch`, by its content type. All that can be wrong with a body is found on the way."""

from __future__ import annotations

from collections.abc import Callable

from core.errors import Unsupported
from core.ledger.batch import Batch
from service.examples.objects import read_json, read_ndjson
from service.examples.reader import Reader
from service.examples.tables import read_arrow, read_csv, read_parquet

FORMATS: dict[str, Callable[[Reader, bytes], Batch]] = {
    "application/json": read_json,
    "application/x-ndjson": read_ndjson,
    "text/csv": read_csv,
    "application/vnd.apache.arrow.stream": read_arrow,
    "application/vnd.apache.parquet": read_parquet,
}


def read(reader: Reader, content_type: str, body: bytes) -> Batch:
    kind = content_type.partition(";")[0].strip().lower() or "application/json"
    if kind not in FORMATS:
        raise Unsupported("content_type_unsupported", f"Send one of: {', '.join(FORMATS)}.")
    return FORMATS[kind](reader, body)
