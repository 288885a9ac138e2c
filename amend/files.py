"""A file of examples -> bodies of requests, read piece by piece: memory holds a few of them, whatever the file's size.

CSV and JSON lines go out as they stand in the file, line by line; what their values are is the service's to say.
"""

from __future__ import annotations

import csv
import gzip
import io
import json
import zlib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any, BinaryIO, cast

from amend import batches, frames
from amend.batches import NDJSON, Batch

CSV = "text/csv"


class Format(StrEnum):
    """Forms of a batch of examples."""

    JSON = "json"
    NDJSON = "ndjson"
    CSV = "csv"
    ARROW = "arrow"
    PARQUET = "parquet"


SUFFIXES = {f".{form}": form for form in Format} | {".jsonl": Format.NDJSON, ".arrows": Format.ARROW}
CODECS = {".gz": "gzip", ".zst": "zstd"}


@dataclass
class ExampleFile:
    """A file, or what came of standard input; ``names`` tells what it calls columns of examples: ``{"y": "left"}``."""

    name: str
    form: Format
    codec: str | None = None
    names: Mapping[str, str] = field(default_factory=dict)
    content: bytes | None = None
    share: float = 0.0
    """How much of it was read."""

    @classmethod
    def find(cls, name: str, form: Format | None = None, names: Mapping[str, str] | None = None) -> ExampleFile:
        """The file of a name, which tells what it is; ValueError if it does not, or if its columns have no names."""
        path = Path(name.lower())
        codec = CODECS.get(path.suffix)
        form = form or SUFFIXES.get((path.with_suffix("") if codec else path).suffix)
        if form is None:
            raise ValueError(f"cannot tell the form of {name} by its name ({', '.join(Format)})")
        if codec and form in (Format.ARROW, Format.PARQUET):
            raise ValueError(f"{name}: {form} files are compressed inside, not as a whole; unpack it first")
        if names and form in (Format.JSON, Format.NDJSON):
            raise ValueError("target, id, subject and weight name columns: of .csv, .arrow and .parquet files")
        return cls(name, form, codec, names or {})

    def open(self) -> BinaryIO:
        return io.BytesIO(self.content) if self.content is not None else Path(self.name).open("rb")

    @property
    def size(self) -> int:
        return len(self.content) if self.content is not None else Path(self.name).stat().st_size

    def batches(self) -> Iterator[Batch]:
        """The bodies, made as they are asked for; ValueError if the file is damaged, or has no example."""
        read = {
            Format.JSON: self.read_json,
            Format.NDJSON: self.read_ndjson,
            Format.CSV: self.read_csv,
            Format.ARROW: self.read_tables,
            Format.PARQUET: self.read_tables,
        }[self.form]
        self.share, empty = 0.0, True
        try:
            with self.open() as raw:
                for batch in read(raw):
                    empty = False
                    yield batch
        except (EOFError, zlib.error, csv.Error, UnicodeDecodeError) as error:
            raise ValueError(f"cannot read {self.name}: {error}") from error
        except OSError as error:
            if error.errno is not None:
                raise
            raise ValueError(f"cannot read {self.name}: {error}") from error  # gzip's and pyarrow's own
        if empty:
            raise ValueError(f"there is no example in {self.name}")

    def note_place(self, raw: BinaryIO) -> None:
        self.share = raw.tell() / max(1, self.size)

    def read_json(self, raw: BinaryIO) -> Iterator[Batch]:
        """Whole: a list has no end before its end."""
        given = json.loads(unpack(raw, self.codec).read())
        examples = given.get("examples") if isinstance(given, dict) else given
        if not isinstance(examples, list):
            raise ValueError(f"{self.name} has no list of examples")
        yield from batches.batch_lines(examples)

    def read_ndjson(self, raw: BinaryIO) -> Iterator[Batch]:
        unpacked = unpack(raw, self.codec)  # kept: with it, the file would be closed
        for lines in gather(line.strip() for line in unpacked):
            self.note_place(raw)
            yield Batch(b"\n".join(lines), NDJSON, len(lines))

    def read_csv(self, raw: BinaryIO) -> Iterator[Batch]:
        # as text: of bytes, Python knows one end of lines, and old Macs had another. Latin-1 changes no byte
        with io.TextIOWrapper(unpack(raw, self.codec), "latin-1", newline="") as lines:
            records = read_records(line.encode("latin-1") for line in lines)
            header = next(records, b"")
            if not header.endswith(b"\n"):
                header += b"\n"
            first = 2
            for rows in gather(records):
                content = header + b"".join(rows)
                if self.names:
                    content = name_csv_columns(content, self.names, first)
                self.note_place(raw)
                yield Batch(content, CSV, len(rows))
                first += len(rows)

    def read_tables(self, raw: BinaryIO) -> Iterator[Batch]:
        pieces = self.read_parquet(raw) if self.form is Format.PARQUET else self.read_arrow(raw)
        if self.names:
            pieces = (part for piece in pieces for part in frames.name_columns(piece, self.names).to_batches())
        pa = batches.require("pyarrow")
        try:
            yield from batches.batch_tables(pieces)
        except pa.ArrowException as error:
            raise ValueError(f"cannot read {self.name}: {error}") from error

    def read_parquet(self, raw: BinaryIO) -> Iterator[Any]:
        # a column chunk by and by: a row group can be as large as the file
        file = batches.require("pyarrow.parquet").ParquetFile(raw, pre_buffer=False, buffer_size=2**20)
        about, done = file.metadata, 0
        size = sum(about.row_group(i).total_byte_size for i in range(about.num_row_groups))
        for piece in file.iter_batches(batches.count_fitting_rows(size, about.num_rows), use_threads=False):
            done += piece.num_rows
            self.share = done / about.num_rows
            yield piece

    def read_arrow(self, raw: BinaryIO) -> Iterator[Any]:
        ipc = batches.require("pyarrow").ipc
        is_file = raw.read(6) == b"ARROW1"
        raw.seek(0)
        reader = ipc.open_file(raw) if is_file else ipc.open_stream(raw)
        pieces = map(reader.get_batch, range(reader.num_record_batches)) if is_file else reader
        for piece in pieces:
            self.note_place(raw)
            yield batches.resolve_views(piece)


def unpack(raw: BinaryIO, codec: str | None) -> BinaryIO:
    """What a compressed file unpacks to, as it is read."""
    if codec == "gzip":
        return cast("BinaryIO", gzip.GzipFile(fileobj=raw))
    if codec == "zstd":
        return io.BufferedReader(batches.require("pyarrow").CompressedInputStream(raw, codec))
    return raw


def gather(lines: Iterable[bytes]) -> Iterator[list[bytes]]:
    """Lines that have something in them, as many as go out at once."""
    waiting: list[bytes] = []
    size = 0
    for line in lines:
        if not line.strip():
            continue
        if waiting and (len(waiting) == batches.BATCH_ROWS or size + len(line) > batches.BATCH_BYTES):
            yield waiting
            waiting, size = [], 0
        waiting.append(line)
        size += len(line) + 1
    if waiting:
        yield waiting


def read_records(lines: Iterable[bytes]) -> Iterator[bytes]:
    """The rows of CSV: lines, those in one that a quoted text goes over."""
    waiting: list[bytes] = []
    quotes = size = count = 0
    for line in lines:
        waiting.append(line)
        quotes, size = quotes + line.count(b'"'), size + len(line)
        if quotes % 2 == 0:
            yield b"".join(waiting)
            waiting, size = [], 0
            count += 1
        elif size > batches.BATCH_BYTES:
            raise ValueError(f"line {count + 1} begins a text in quotes that does not end")
    if waiting:
        yield b"".join(waiting)


def name_csv_columns(content: bytes, names: Mapping[str, str], first: int = 2) -> bytes:
    """CSV with other names; ``first`` is the line of its first row. Its values stay the texts that they are."""
    try:
        rows = csv.reader(io.StringIO(content.decode("utf-8-sig"), newline=""), strict=True)
        header, *lines = [row for row in rows if row]
    except (UnicodeDecodeError, csv.Error, ValueError) as error:
        raise ValueError(f"it cannot be read as CSV: {error}") from error
    for column in names.values():
        if column not in header:
            raise ValueError(f"the file has no column {column!r}; it has {frames.quote(header)}")
    rest = [i for i, name in enumerate(header) if name not in {*names, *names.values()}]
    places = [*(header.index(column) for column in names.values()), *rest]
    out = io.StringIO(newline="")
    writer = csv.writer(out)
    writer.writerow([*names, *(header[i] for i in rest)])
    for number, line in enumerate(lines, first):
        if len(line) != len(header):
            raise ValueError(f"line {number} has {len(line)} fields; the header has {len(header)}")
        writer.writerow([line[i] for i in places])
    return out.getvalue().encode()
