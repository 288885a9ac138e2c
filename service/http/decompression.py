"""Decompresses request bodies, with the same size limits as for uncompressed ones."""

import pyarrow as pa
from starlette.requests import Request

from core.errors import Malformed, TooLarge, Unsupported
from service.http.body_threads import run_large
from service.http.json_bodies import ReadRequest

CODECS = ("gzip", "zstd")
STEP_BYTES = 2**20
"""Bytes that are decompressed at a time. A zip bomb takes at most this much memory above the limit."""


async def decompress(request: Request, limit: int) -> Request:
    """The request with its body decompressed; the same request if the body is not compressed."""
    given = [value.strip().lower() for value in request.headers.getlist("content-encoding")]
    if given in ([], ["identity"]):
        return request
    if len(given) != 1 or given[0] not in CODECS:
        raise Unsupported("content_encoding_unsupported", "Unsupported Content-Encoding. Use gzip or zstd, or none.")
    body = await request.body()
    return ReadRequest(request.scope, await run_large(lambda: decompress_bytes(body, given[0], limit)))


def decompress_bytes(body: bytes, codec: str, limit: int) -> bytes:
    """The decompressed bytes. Raises TooLarge above the limit."""
    pieces, size = [], 0
    try:
        with pa.CompressedInputStream(pa.BufferReader(body), codec) as stream:
            while piece := stream.read(min(STEP_BYTES, limit + 1 - size)):
                pieces.append(piece)
                size += len(piece)
                if size > limit:
                    message = f"The decompressed body exceeds the limit of {limit} bytes. Send smaller batches."
                    raise TooLarge("body_too_large", message)
    except (OSError, pa.ArrowException) as error:
        raise Malformed("body_malformed", f"The body is not {codec}, as its Content-Encoding says: {error}") from None
    return b"".join(pieces)
