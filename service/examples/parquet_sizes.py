"""The decompressed size of a Parquet file, read from the headers of its pages before anything is decompressed.

The footer has sizes too, but Parquet readers trust the pages. Both use Thrift's compact protocol. This module parses it
without pyarrow, because a damaged footer can crash the process there.
"""

from typing import Any, NamedTuple

MAX_FOOTER_BYTES = 4 * 2**20
"""Far more than 10 000 columns need. The objects that a reader creates from a footer are many times as large."""
MAX_PAGES = 50_000
DELTA_BYTE_ARRAY = 7
"""An encoding in which a text repeats a part of the previous one, so that a small page can decode to any size."""
DATA, DICTIONARY, DATA_2 = 5, 7, 8
"""Fields of a page header for data pages, dictionary pages and data pages of version 2."""
TRUE, FALSE, BYTE, DOUBLE, BINARY, LIST, SET, STRUCT = 1, 2, 3, 7, 8, 9, 10, 12
MAX_DEPTH = 16


class Sizes(NamedTuple):
    """Totals over all pages."""

    unpacked: int
    values: int


class ThriftReader:
    """Reads structs of the compact protocol as dictionaries by field number."""

    def __init__(self, data: bytes, position: int) -> None:
        self.data, self.position = data, position

    def byte(self) -> int:
        found = self.data[self.position]
        self.position += 1
        return found

    def varint(self) -> int:
        value = shift = 0
        while shift < 70:
            found = self.byte()
            value |= (found & 0x7F) << shift
            if found < 0x80:
                return value
            shift += 7
        raise ValueError("a number is too long")

    def zigzag(self) -> int:
        value = self.varint()
        return (value >> 1) ^ -(value & 1)

    def struct(self, depth: int = 0) -> dict[int, Any]:
        fields: dict[int, Any] = {}
        last = 0
        while head := self.byte():
            last = last + (head >> 4) if head >> 4 else self.zigzag()
            fields[last] = self.value(head & 15, depth + 1)
        return fields

    def value(self, kind: int, depth: int) -> Any:
        if depth > MAX_DEPTH:
            raise ValueError("a header is nested too deeply")
        if kind in (TRUE, FALSE):
            return kind == TRUE
        if kind == STRUCT:
            return self.struct(depth)
        if BYTE < kind < DOUBLE:
            return self.zigzag()
        if kind in (BYTE, DOUBLE, BINARY):
            size = 1 if kind == BYTE else 8 if kind == DOUBLE else self.varint()
            self.position += size
            return self.data[self.position - size : self.position]
        if kind in (LIST, SET):
            head = self.byte()
            count = head >> 4 if head < 0xF0 else self.varint()
            inner = BYTE if head & 15 in (TRUE, FALSE) else head & 15
            if count > len(self.data) - self.position:
                raise ValueError("a list is longer than the file")
            return [self.value(inner, depth + 1) for _ in range(count)]
        raise ValueError("it has a field of an unknown type")


def sizes_of(body: bytes) -> Sizes:
    """The sizes of a file. Raises ValueError or IndexError if footer or pages are invalid."""
    length = int.from_bytes(body[-8:-4], "little")
    if length > min(MAX_FOOTER_BYTES, len(body) - 12):
        raise ValueError(f"its footer is larger than {MAX_FOOTER_BYTES} bytes or than the file")
    try:
        return add_up(body, ThriftReader(body, len(body) - 8 - length).struct())
    except (AttributeError, TypeError):  # such as a number instead of a struct
        raise ValueError("its footer is damaged") from None


def add_up(body: bytes, footer: dict[int, Any]) -> Sizes:
    """The sizes of all pages that the footer lists."""
    if bytes(footer.get(6) or b"").startswith(b"parquet-cpp version"):
        raise ValueError("it was written by an unsupported old version of parquet-cpp; use a newer version")
    unpacked = values = pages = 0
    for group in footer.get(4, ()):
        for chunk in group.get(1, ()):
            entry = chunk.get(3, {})
            start, packed = entry.get(9, 0), entry.get(7, 0)
            if 0 < entry.get(11, 0) < start:  # the dictionary precedes the data
                start = entry[11]
            if start == 0:  # a column without values has no pages
                continue
            position, end = start, start + packed
            if not 0 <= start <= end <= len(body):
                raise ValueError("a column is outside the file")
            while position < end:
                pages += 1
                if pages > MAX_PAGES:
                    raise ValueError(f"it has more than {MAX_PAGES} pages; write larger ones")
                position, size, count = page_at(body, position)
                unpacked, values = unpacked + size, values + count
    return Sizes(unpacked, values)


def page_at(body: bytes, position: int) -> tuple[int, int, int]:
    """End, decompressed size and number of values of the page at a position."""
    reader = ThriftReader(body, position)
    header = reader.struct()
    size: Any = header.get(2)
    packed: Any = header.get(3)
    kinds = {field: header[field] for field in (DATA, DICTIONARY, DATA_2) if isinstance(header.get(field), dict)}
    counts = [kind.get(1) for kind in kinds.values()] or [0]
    if not all(isinstance(n, int) and 0 <= n < 2**31 for n in (size, packed, *counts)):
        raise ValueError("a page has an invalid size")
    if DELTA_BYTE_ARRAY in (kinds.get(DATA, {}).get(2), kinds.get(DATA_2, {}).get(4)):
        raise ValueError("a column uses the encoding DELTA_BYTE_ARRAY, which is not supported; use plain or dictionary")
    return reader.position + packed, size, max(counts)
