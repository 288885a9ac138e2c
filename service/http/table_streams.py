"""Responses with tables of any length: Arrow streams and Parquet files, sent while they are written."""

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
"""OpenAPI description of both formats, for requests and responses."""


def choose_format(
    request: Request,
    format: Annotated[
        Format | None,
        Query(description="Format of the response. Default: Parquet if `Accept` names it, otherwise an Arrow stream."),
    ] = None,
) -> Format:
    return format or ("parquet" if MEDIA_TYPES["parquet"] in request.headers.get("accept", "") else "arrow")


ResponseFormat = Annotated[Format, Depends(choose_format)]


class OutgoingFile(io.RawIOBase):
    """A file that is sent while it is written: it buffers only the bytes not yet sent."""

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
        """The bytes written since the last call."""
        taken, self.waiting = b"".join(self.waiting), []
        return taken


def stream(
    tables: Iterable[pa.Table], schema: pa.Schema, form: Format, name: str, about: Mapping[str, str]
) -> StreamingResponse:
    """A response with tables of this schema, one after the other, as a file of this name."""
    headers = {"Content-Disposition": f'attachment; filename="{name}.{form}"'}
    content = write(tables, schema.with_metadata(dict(about)), form)
    return StreamingResponse(content, headers=headers, media_type=MEDIA_TYPES[form])


def write(tables: Iterable[pa.Table], schema: pa.Schema, form: Format) -> Iterator[bytes]:
    """The bytes of a stream or a file, while it is written."""
    out = OutgoingFile()
    opened = pa.ipc.new_stream(out, schema) if form == "arrow" else pa.parquet.ParquetWriter(out, schema)
    with opened as writer:
        for table in tables:
            writer.write_table(table.replace_schema_metadata(schema.metadata))
            yield out.take()
    yield out.take()
