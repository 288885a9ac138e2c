"""Parses a request body into a `Batch`, according to its content type."""

from collections.abc import Callable

from core.errors import Unsupported
from core.ledger.batch import Batch
from service.examples.json_objects import read_json, read_ndjson, read_one
from service.examples.readers import ExampleReader
from service.examples.tables import from_table, open_arrow, open_parquet, read_csv

JSON = "application/json"
FORMATS: dict[str, Callable[[ExampleReader, bytes], Batch]] = {
    JSON: read_json,
    "application/x-ndjson": read_ndjson,
    "text/csv": read_csv,
    "application/vnd.apache.arrow.stream": lambda reader, body: from_table(reader, open_arrow(reader, body)),
    "application/vnd.apache.parquet": lambda reader, body: from_table(reader, open_parquet(reader, body)),
}


def read(reader: ExampleReader, content_type: str, body: bytes, id: str | None = None) -> Batch:
    """The batch of a body; with `id`, of a JSON body that is one example."""
    kind = content_type.partition(";")[0].strip().lower() or JSON
    known = list(FORMATS) if id is None else [JSON]
    if kind not in known:
        raise Unsupported("content_type_unsupported", f"Unsupported Content-Type. Use one of: {', '.join(known)}.")
    return FORMATS[kind](reader, body) if id is None else read_one(reader, id, body)
