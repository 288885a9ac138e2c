"""What an Arrow stream says it will unpack to, read from its metadata before anything is unpacked.

A compressed buffer begins with its unpacked length, which the reader allocates unseen. Where buffers are is told by a
flatbuffer (Arrow's `Message.fbs`, `Schema.fbs`), of which a few fields are read here.
"""

from __future__ import annotations

import struct
from typing import NamedTuple

import numpy as np
import pyarrow as pa

MAX_MESSAGES = 10_000
SCHEMA, DICTIONARY, BATCH = 1, 2, 3
"""Kinds of messages."""
VERSION_4 = 3


class Sizes(NamedTuple):
    """Of all messages of a stream together."""

    rows: int
    unpacked: int
    columns: int


class Table:
    """A table of a flatbuffer: fields by their number, found through an index that tells where each is."""

    def __init__(self, data: bytes, position: int) -> None:
        self.data, self.position = data, position
        self.index = position - number("<i", data, position)
        self.index_size = number("<H", data, self.index)

    def place(self, field: int) -> int | None:
        """Where a field is; None if it has its default."""
        slot = 4 + 2 * field
        offset = number("<H", self.data, self.index + slot) if slot < self.index_size else 0
        return self.position + offset if offset else None

    def value(self, field: int, form: str) -> int:
        found = self.place(field)
        return 0 if found is None else number(form, self.data, found)

    def follow(self, field: int) -> int | None:
        """Where a field points to."""
        found = self.place(field)
        return None if found is None else found + number("<I", self.data, found)

    def table(self, field: int) -> Table | None:
        found = self.follow(field)
        return None if found is None else Table(self.data, found)

    def length(self, field: int) -> int:
        """Of a vector."""
        found = self.follow(field)
        return 0 if found is None else number("<I", self.data, found)


def number(form: str, data: bytes, position: int) -> int:
    if position < 0:
        raise ValueError("an offset points before the message")
    found: int = struct.unpack_from(form, data, position)[0]
    return found


def sizes_of(body: bytes) -> Sizes:
    """ValueError, struct.error or an error of Arrow, if this is no Arrow stream."""
    rows = unpacked = columns = 0
    reader = pa.ipc.MessageReader.open_stream(pa.BufferReader(body))
    for count, message in enumerate(reader):
        if count >= MAX_MESSAGES:
            raise ValueError(f"it has more than {MAX_MESSAGES} messages; write larger record batches")
        metadata = message.metadata.to_pybytes()
        root = Table(metadata, number("<I", metadata, 0))
        kind, header = root.value(1, "<B"), root.table(2)
        if header is None:
            raise ValueError("a message has no header")
        if kind == SCHEMA:
            columns = header.length(1)
            continue
        if root.value(0, "<h") <= VERSION_4 and root.length(4):
            raise ValueError("it is of a version of Arrow that hides how it is compressed")
        batch = header if kind == BATCH else header.table(1) if kind == DICTIONARY else None
        if batch is None:
            raise ValueError("a message is neither a schema nor data")
        rows += batch.value(0, "<q") if kind == BATCH else 0
        unpacked += unpacked_size(batch, message.body)
    return Sizes(rows, unpacked, columns)


def unpacked_size(batch: Table, body: pa.Buffer | None) -> int:
    """Bytes of all buffers of a batch."""
    count = batch.length(2)
    if count == 0:
        return 0
    start = batch.follow(2)
    assert start is not None
    spans = np.frombuffer(batch.data, "<i8", 2 * count, start + 4).reshape(count, 2)
    lengths = spans[:, 1]
    if (spans < 0).any() or (lengths > 2**48).any():
        raise ValueError("a buffer has no possible length")
    if batch.place(3) is None:  # not compressed
        return int(lengths.sum())
    data = memoryview(body) if body is not None else memoryview(b"")
    total = 0
    for offset, length in spans.tolist():
        if length:
            declared: int = struct.unpack_from("<q", data, offset)[0]
            if declared < -1 or declared > 2**48:
                raise ValueError("a buffer has no possible length")
            total += length if declared == -1 else declared
    return total
