"""Bodies that come compressed, unpacked within the limits of those that do not."""

from __future__ import annotations

import pyarrow as pa
from starlette.requests import Request

from core.errors import Malformed, TooLarge, Unsupported
from service.http.json_bodies import ReadRequest
from service.threads import run_large

CODECS = ("gzip", "zstd")
STEP_BYTES = 2**20
"""Bytes that are unpacked at a time: at most this much more than the limit is in memory before a bomb is refused."""


async def decompress(request: Request, limit: int) -> Request:
    """The request with its body as it was before it was compressed; itself, if it was not."""
    given = [value.strip().lower() for value in request.headers.getlist("content-encoding")]
    if given in ([], ["identity"]):
        return request
    if len(given) != 1 or given[0] not in CODECS:
        raise Unsupported("content_encoding_unsupported", f"Send the body as it is, or as {' or '.join(CODECS)}.")
    body = await request.body()
    return ReadRequest(request.scope, await run_large(lambda: unpack(body, given[0], limit)))


def unpack(body: bytes, codec: str, limit: int) -> bytes:
    """The bytes that a body unpacks to."""
    pieces, size = [], 0
    try:
        with pa.CompressedInputStream(pa.BufferReader(body), codec) as stream:
            while piece := stream.read(min(STEP_BYTES, limit + 1 - size)):
                pieces.append(piece)
                size += len(piece)
                if size > limit:
                    message = f"The body unpacks to more than {limit} bytes, which are allowed; send smaller batches."
                    raise TooLarge("body_too_large", message)
    except (OSError, pa.ArrowException) as error:
        raise Malformed("body_malformed", f"The body is not {codec}, as its Content-Encoding says: {error}") from None
    return b"".join(pieces)
