"""The decompressed size of an Arrow stream, read from its metadata before anything is decompressed.

A compressed buffer starts with its decompressed length, which Arrow's reader allocates without a check. The positions
of buffers are in flatbuffers (Arrow's `Message.fbs` and `Schema.fbs`), of which this module reads a few fields.
"""

from __future__ import annotations

import struct
from typing import NamedTuple

import numpy as np
import pyarrow as pa

MAX_MESSAGES = 10_000
SCHEMA, DICTIONARY, BATCH = 1, 2, 3
"""Types of messages."""
VERSION_4 = 3


class Sizes(NamedTuple):
    """Totals over all messages of a stream."""

    rows: int
    unpacked: int
    columns: int


class Table:
    """A table of a flatbuffer. Its fields are numbered; an index has the offset of each."""

    def __init__(self, data: bytes, position: int) -> None:
        self.data, self.position = data, position
        self.index = position - number("<i", data, position)
        self.index_size = number("<H", data, self.index)

    def place(self, field: int) -> int | None:
        """Position of a field; None if it has its default value."""
        slot = 4 + 2 * field
        offset = number("<H", self.data, self.index + slot) if slot < self.index_size else 0
        return self.position + offset if offset else None

    def value(self, field: int, form: str) -> int:
        position = self.place(field)
        return 0 if position is None else number(form, self.data, position)

    def follow(self, field: int) -> int | None:
        """Position that a field points to."""
        position = self.place(field)
        return None if position is None else position + number("<I", self.data, position)

    def table(self, field: int) -> Table | None:
        position = self.follow(field)
        return None if position is None else Table(self.data, position)

    def length(self, field: int) -> int:
        """Length of a vector."""
        position = self.follow(field)
        return 0 if position is None else number("<I", self.data, position)


def number(form: str, data: bytes, position: int) -> int:
    if position < 0:
        raise ValueError("an offset points before the message")
    value: int = struct.unpack_from(form, data, position)[0]
    return value


def sizes_of(body: bytes) -> Sizes:
    """The sizes of a stream. Raises ValueError, struct.error or an Arrow error if the body is not an Arrow stream."""
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
            raise ValueError("it uses an old version of the format that does not declare its compression")
        batch = header if kind == BATCH else header.table(1) if kind == DICTIONARY else None
        if batch is None:
            raise ValueError("a message is neither a schema nor data")
        rows += batch.value(0, "<q") if kind == BATCH else 0
        unpacked += unpacked_size(batch, message.body)
    return Sizes(rows, unpacked, columns)


def unpacked_size(batch: Table, body: pa.Buffer | None) -> int:
    """Decompressed bytes of all buffers of a batch."""
    count = batch.length(2)
    if count == 0:
        return 0
    start = batch.follow(2)
    assert start is not None
    spans = np.frombuffer(batch.data, "<i8", 2 * count, start + 4).reshape(count, 2)
    lengths = spans[:, 1]
    if (spans < 0).any() or (lengths > 2**48).any():
        raise ValueError("a buffer has an invalid length")
    if batch.place(3) is None:  # not compressed
        return int(lengths.sum())
    data = memoryview(body) if body is not None else memoryview(b"")
    total = 0
    for offset, length in spans.tolist():
        if length:
            declared: int = struct.unpack_from("<q", data, offset)[0]
            if declared < -1 or declared > 2**48:
                raise ValueError("a buffer has an invalid length")
            total += length if declared == -1 else declared
    return total
