"""A request body -> a `Batch`, by its content type. All that can be wrong with a body is found on the way."""

from __future__ import annotations

from collections.abc import Callable

from core.errors import Unsupported
from core.ledger.batch import Batch
from service.examples.objects import read_json, read_ndjson, read_one
from service.examples.reader import Reader
from service.examples.tables import read_arrow, read_csv, read_parquet

JSON = "application/json"
FORMATS: dict[str, Callable[[Reader, bytes], Batch]] = {
    JSON: read_json,
    "application/x-ndjson": read_ndjson,
    "text/csv": read_csv,
    "application/vnd.apache.arrow.stream": read_arrow,
    "application/vnd.apache.parquet": read_parquet,
}


def read(reader: Reader, content_type: str, body: bytes, id: str | None = None) -> Batch:
    """The batch of a body; with an `id` that of one example, which is JSON."""
    kind = content_type.partition(";")[0].strip().lower() or JSON
    known = list(FORMATS) if id is None else [JSON]
    if kind not in known:
        raise Unsupported("content_type_unsupported", f"Send one of: {', '.join(known)}.")
    return FORMATS[kind](reader, body) if id is None else read_one(reader, id, body)
