"""Reads a file of examples in parts and converts them to request bodies, so that a file of any size fits into memory.

CSV and JSON lines are sent unchanged; the service parses their values.
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

from amend import dataframes, example_batches
from amend.example_batches import NDJSON, Batch

CSV = "text/csv"


class Format(StrEnum):
    """File formats of examples."""

    JSON = "json"
    NDJSON = "ndjson"
    CSV = "csv"
    ARROW = "arrow"
    PARQUET = "parquet"


SUFFIXES = {f".{form}": form for form in Format} | {".jsonl": Format.NDJSON, ".arrows": Format.ARROW}
CODECS = {".gz": "gzip", ".zst": "zstd"}


@dataclass
class ExampleFile:
    """A file, or standard input. ``names`` maps columns of examples to columns of the file: ``{"y": "left"}``."""

    name: str
    form: Format
    codec: str | None = None
    names: Mapping[str, str] = field(default_factory=dict)
    content: bytes | None = None
    share: float = 0.0
    """Share of the file that was read."""

    @classmethod
    def find(cls, name: str, form: Format | None = None, names: Mapping[str, str] | None = None) -> ExampleFile:
        """The file of that name. Raises ValueError if its format is unknown, or if ``names`` do not apply."""
        path = Path(name.lower())
        codec = CODECS.get(path.suffix)
        form = form or SUFFIXES.get((path.with_suffix("") if codec else path).suffix)
        if form is None:
            raise ValueError(f"Cannot infer the format of {name} from its name. Supported: {', '.join(Format)}.")
        if codec and form in (Format.ARROW, Format.PARQUET):
            raise ValueError(f"{name}: a compressed {form} file is not supported. Decompress it first.")
        if names and form in (Format.JSON, Format.NDJSON):
            raise ValueError("target, id, subject and weight apply only to .csv, .arrow and .parquet files.")
        return cls(name, form, codec, names or {})

    def open(self) -> BinaryIO:
        return io.BytesIO(self.content) if self.content is not None else Path(self.name).open("rb")

    @property
    def size(self) -> int:
        return len(self.content) if self.content is not None else Path(self.name).stat().st_size

    def batches(self) -> Iterator[Batch]:
        """The request bodies, created lazily. Raises ValueError if the file is damaged or has no examples."""
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
            raise ValueError(f"Cannot read {self.name}: {error}") from error
        except OSError as error:
            if error.errno is not None:
                raise
            raise ValueError(f"Cannot read {self.name}: {error}") from error  # raised by gzip or pyarrow
        if empty:
            raise ValueError(f"{self.name} contains no examples.")

    def update_share(self, raw: BinaryIO) -> None:
        self.share = raw.tell() / max(1, self.size)

    def read_json(self, raw: BinaryIO) -> Iterator[Batch]:
        """Read the whole file: a JSON list cannot be parsed in parts."""
        document = json.loads(unpack(raw, self.codec).read())
        examples = document.get("examples") if isinstance(document, dict) else document
        if not isinstance(examples, list):
            raise ValueError(f"{self.name} must contain a list of examples, or an object with a list `examples`.")
        yield from example_batches.batch_lines(examples)

    def read_ndjson(self, raw: BinaryIO) -> Iterator[Batch]:
        unpacked = unpack(raw, self.codec)  # a reference, since its finalizer would close the file
        for lines in example_batches.group_lines(line.strip() for line in unpacked):
            self.update_share(raw)
            yield Batch(b"\n".join(lines), NDJSON, len(lines))

    def read_csv(self, raw: BinaryIO) -> Iterator[Batch]:
        # As text, because Python splits bytes only at \n and some files end lines with \r. Latin-1 keeps every byte.
        with io.TextIOWrapper(unpack(raw, self.codec), "latin-1", newline="") as lines:
            records = read_records(line.encode("latin-1") for line in lines)
            header = next(records, b"")
            if not header.endswith(b"\n"):
                header += b"\n"
            first = 2
            for rows in example_batches.group_lines(records):
                content = header + b"".join(rows)
                if self.names:
                    content = name_csv_columns(content, self.names, first)
                self.update_share(raw)
                yield Batch(content, CSV, len(rows))
                first += len(rows)

    def read_tables(self, raw: BinaryIO) -> Iterator[Batch]:
        pieces = self.read_parquet(raw) if self.form is Format.PARQUET else self.read_arrow(raw)
        if self.names:
            pieces = (part for piece in pieces for part in dataframes.name_columns(piece, self.names).to_batches())
        pa = example_batches.require("pyarrow")
        try:
            yield from example_batches.batch_tables(pieces)
        except pa.ArrowException as error:
            raise ValueError(f"Cannot read {self.name}: {error}") from error

    def read_parquet(self, raw: BinaryIO) -> Iterator[Any]:
        # Without pre-buffering, since a row group can be as large as the file.
        file = example_batches.require("pyarrow.parquet").ParquetFile(raw, pre_buffer=False, buffer_size=2**20)
        metadata, done = file.metadata, 0
        size = sum(metadata.row_group(i).total_byte_size for i in range(metadata.num_row_groups))
        for piece in file.iter_batches(example_batches.count_fitting_rows(size, metadata.num_rows), use_threads=False):
            done += piece.num_rows
            self.share = done / metadata.num_rows
            yield piece

    def read_arrow(self, raw: BinaryIO) -> Iterator[Any]:
        ipc = example_batches.require("pyarrow").ipc
        is_file = raw.read(6) == b"ARROW1"
        raw.seek(0)
        reader = ipc.open_file(raw) if is_file else ipc.open_stream(raw)
        pieces = map(reader.get_batch, range(reader.num_record_batches)) if is_file else reader
        for piece in pieces:
            self.update_share(raw)
            yield example_batches.resolve_views(piece)


def unpack(raw: BinaryIO, codec: str | None) -> BinaryIO:
    """Decompress a file as it is read."""
    if codec == "gzip":
        return cast("BinaryIO", gzip.GzipFile(fileobj=raw))
    if codec == "zstd":
        return io.BufferedReader(example_batches.require("pyarrow").CompressedInputStream(raw, codec))
    return raw


def read_records(lines: Iterable[bytes]) -> Iterator[bytes]:
    """The records of CSV. A record with line breaks inside quotes spans several lines."""
    collected: list[bytes] = []
    quotes = size = count = 0
    for line in lines:
        collected.append(line)
        quotes, size = quotes + line.count(b'"'), size + len(line)
        if quotes % 2 == 0:
            yield b"".join(collected)
            collected, size = [], 0
            count += 1
        elif size > example_batches.BATCH_BYTES:
            raise ValueError(f"Line {count + 1} opens a quoted text that is never closed.")
    if collected:
        yield b"".join(collected)


def name_csv_columns(content: bytes, names: Mapping[str, str], first: int = 2) -> bytes:
    """Rename the columns of CSV. ``first`` is the line number of its first row. Values remain unchanged."""
    try:
        rows = csv.reader(io.StringIO(content.decode("utf-8-sig"), newline=""), strict=True)
        header, *lines = [row for row in rows if row]
    except (UnicodeDecodeError, csv.Error, ValueError) as error:
        raise ValueError(f"Invalid CSV: {error}") from error
    for column in names.values():
        if column not in header:
            raise ValueError(f"The file has no column {column!r}. Its columns are {dataframes.quote(header)}.")
    rest = [i for i, name in enumerate(header) if name not in {*names, *names.values()}]
    order = [*(header.index(column) for column in names.values()), *rest]
    out = io.StringIO(newline="")
    writer = csv.writer(out)
    writer.writerow([*names, *(header[i] for i in rest)])
    for number, line in enumerate(lines, first):
        if len(line) != len(header):
            raise ValueError(f"Line {number} has {len(line)} fields, but the header has {len(header)}.")
        writer.writerow([line[i] for i in order])
    return out.getvalue().encode()
