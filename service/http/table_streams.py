"""Tables of any length as answers: Arrow streams and Parquet files, sent while they are written."""

from __future__ import annotations

import io
from collections.abc import Iterable, Iterator, Mapping
from typing import Annotated, Any, Literal

import pyarrow as pa
import pyarrow.parquet
from fastapi import Depends, Query, Request
from starlette.responses import StreamingResponse

Format = Literal["arrow", "parquet"]
MEDIA_TYPES: dict[Format, str] = {
    "arrow": "application/vnd.apache.arrow.stream",
    "parquet": "application/vnd.apache.parquet",
}
CONTENT: dict[str, Any] = {kind: {"schema": {"type": "string", "format": "binary"}} for kind in MEDIA_TYPES.values()}
"""What OpenAPI says of them, as bodies and as answers."""


def choose_format(
    request: Request,
    format: Annotated[
        Format | None, Query(description="Missing: Parquet, if `Accept` asks for it; else an Arrow stream.")
    ] = None,
) -> Format:
    return format or ("parquet" if MEDIA_TYPES["parquet"] in request.headers.get("accept", "") else "arrow")


AnswerFormat = Annotated[Format, Depends(choose_format)]


class OutgoingFile(io.RawIOBase):
    """A file that is written and sent at the same time: it keeps what was not sent yet."""

    def __init__(self) -> None:
        self.waiting: list[bytes] = []
        self.size = 0

    def writable(self) -> bool:
        return True

    def tell(self) -> int:
        return self.size

    def write(self, data: Any) -> int:
        self.waiting.append(bytes(data))
        self.size += len(self.waiting[-1])
        return len(self.waiting[-1])

    def take(self) -> bytes:
        """What was written since."""
        taken, self.waiting = b"".join(self.waiting), []
        return taken


def stream(
    tables: Iterable[pa.Table], schema: pa.Schema, form: Format, name: str, about: Mapping[str, str]
) -> StreamingResponse:
    """The answer: tables of this schema, one after the other, as a file of this name."""
    headers = {"Content-Disposition": f'attachment; filename="{name}.{form}"'}
    content = write(tables, schema.with_metadata(dict(about)), form)
    return StreamingResponse(content, headers=headers, media_type=MEDIA_TYPES[form])


def write(tables: Iterable[pa.Table], schema: pa.Schema, form: Format) -> Iterator[bytes]:
    """The bytes of a stream or a file, as they come."""
    out = OutgoingFile()
    made = pa.ipc.new_stream(out, schema) if form == "arrow" else pa.parquet.ParquetWriter(out, schema)
    with made as writer:
        for table in tables:
            writer.write_table(table.replace_schema_metadata(schema.metadata))
            yield out.take()
    yield out.take()
