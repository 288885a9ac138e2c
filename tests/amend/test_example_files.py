"""Files of examples -> bodies that the service reads, piece by piece."""

from __future__ import annotations

import csv
import gzip
import io
import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet
import pytest

from amend import example_batches
from amend.example_batches import ARROW, NDJSON, Batch
from amend.example_files import CSV, ExampleFile, Format

ROWS = [{"id": f"00{i}", "y": i % 2, "note": f'a, "b" {i}' if i % 3 else f"two\nlines {i}"} for i in range(25)]
TABLE = pa.Table.from_pylist(ROWS)


@pytest.fixture(autouse=True)
def _small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(example_batches, "BATCH_ROWS", 10)


def as_csv(_: Path) -> bytes:
    text = io.StringIO(newline="")
    writer = csv.DictWriter(text, ["id", "y", "note"])
    writer.writeheader()
    writer.writerows(ROWS)
    return b"\xef\xbb\xbf" + text.getvalue().replace("002,", "\r\n002,").encode()


def as_arrow(kind: Callable[..., Any]) -> Callable[[Path], bytes]:
    def write(_: Path) -> bytes:
        sink = io.BytesIO()
        with kind(sink, TABLE.schema) as writer:
            writer.write_table(TABLE, max_chunksize=8)
        return sink.getvalue()

    return write


def as_parquet(file: Path) -> bytes:
    pa.parquet.write_table(TABLE, file, row_group_size=20)
    return file.read_bytes()


LINED = {
    "csv": as_csv,
    "ndjson": lambda _: b"\n\n".join(json.dumps(row).encode() for row in ROWS),
    "json": lambda _: json.dumps(ROWS).encode(),
}
FORMS: dict[str, Callable[[Path], bytes]] = {
    **LINED,
    "arrow": as_arrow(pa.ipc.new_file),
    "arrows": as_arrow(pa.ipc.new_stream),
    "parquet": as_parquet,
}
CODECS: dict[str, Callable[[bytes], bytes]] = {
    "gz": gzip.compress,
    "zst": lambda content: pa.Codec("zstd").compress(content, asbytes=True),
}
NAMES = {**{form: form for form in FORMS}, **{f"{form}.{codec}": form for form in LINED for codec in CODECS}}


def write(folder: Path, suffix: str) -> Path:
    file = folder / f"rows.{suffix}"
    content = FORMS[NAMES[suffix]](file)
    codec = suffix.partition(".")[2]
    file.write_bytes(CODECS[codec](content) if codec else content)
    return file


def read(batch: Batch) -> list[dict[str, Any]]:
    """The rows of a body, by a reader that is not ours."""
    if batch.content_type == CSV:
        found = csv.DictReader(io.StringIO(batch.content.decode("utf-8-sig"), newline=""))
        return [{**row, "y": int(row["y"]) if row["y"].isdecimal() else row["y"]} for row in found]
    if batch.content_type == NDJSON:
        return [json.loads(line) for line in batch.content.splitlines()]
    assert batch.content_type == ARROW
    rows: list[dict[str, Any]] = pa.ipc.open_stream(batch.content).read_all().to_pylist()
    return rows


@pytest.mark.parametrize("suffix", NAMES)
def test_every_format_is_sent_in_pieces_without_changing_a_row(suffix: str, tmp_path: Path) -> None:
    file = ExampleFile.find(str(write(tmp_path, suffix)))
    made = list(file.batches())
    assert [row for batch in made for row in read(batch)] == ROWS
    assert [batch.count for batch in made] == [len(read(batch)) for batch in made]
    assert len(made) > 2
    assert all(batch.count <= 10 for batch in made)


@pytest.mark.parametrize("codec", ["", ".gz"])
def test_lines_that_end_in_a_carriage_return_are_lines(codec: str, tmp_path: Path) -> None:
    content = as_csv(tmp_path).replace(b"\r\n", b"\r")
    file = tmp_path / f"rows.csv{codec}"
    file.write_bytes(gzip.compress(content) if codec else content)
    made = list(ExampleFile.find(str(file)).batches())
    assert [batch.count for batch in made] == [10, 10, 5]
    assert [row for batch in made for row in read(batch)] == ROWS


@pytest.mark.parametrize("content", [b"", b"[]", b'{"examples": []}'])
def test_a_file_without_examples_is_rejected(content: bytes, tmp_path: Path) -> None:
    name = "a.json" if content else "a.ndjson"
    (tmp_path / name).write_bytes(content)
    with pytest.raises(ValueError, match="contains no examples"):
        list(ExampleFile.find(str(tmp_path / name)).batches())


@pytest.mark.parametrize("suffix", ["csv", "csv.gz", "parquet", "arrows"])
def test_a_file_is_read_lazily(suffix: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    draw = random.Random(0)
    large = [{**row, "note": draw.randbytes(25_000).hex()} for row in ROWS * 8]
    monkeypatch.setattr("tests.amend.test_example_files.ROWS", large)
    monkeypatch.setattr("tests.amend.test_example_files.TABLE", pa.Table.from_pylist(ROWS))
    monkeypatch.setattr(example_batches, "BATCH_BYTES", 10**6)
    file = ExampleFile.find(str(write(tmp_path, suffix)))
    shares = []
    for batch in file.batches():
        assert len(batch.content) < 2 * 10**6
        shares.append(file.share)
    assert shares == sorted(shares)
    assert shares[0] < 0.5
    assert shares[-1] == pytest.approx(1, abs=0.1)


@pytest.mark.parametrize("suffix", ["csv", "csv.zst", "arrow", "parquet"])
def test_columns_are_named_in_every_piece(suffix: str, tmp_path: Path) -> None:
    file = ExampleFile.find(str(write(tmp_path, suffix)), names={"y": "note", "subject": "id", "id": "id"})
    found = [row for batch in file.batches() for row in read(batch)]
    assert found == [{"y": row["note"], "subject": row["id"], "id": row["id"]} for row in ROWS]


@pytest.mark.parametrize(
    ("name", "content", "told"),
    [
        ("a.csv", b"id,y\n" + b"a,1\n" * 20 + b"a\n", "Line 22 has 1 fields"),
        ("a.csv", b"id,b\n" + b"a,1\n" * 20, "has no column 'y'. Its columns are 'id', 'b'"),
        ("a.csv", b'id,y\n"' + b"a,1\n" * 20, "opens a quoted text that is never closed"),
        ("a.csv", b"", ".*a.csv contains no examples"),
        ("a.csv", b"id,y\n", ".*a.csv contains no examples"),
        ("a.csv.gz", gzip.compress(b"id,y\n" + b"a,1\n" * 20, mtime=0)[:-9], "Cannot read .*a.csv.gz"),
        ("a.csv.zst", b"no such thing", "Cannot read .*a.csv.zst"),
        ("a.parquet", b"no such thing", "Cannot read .*a.parquet"),
        ("a.arrow", b"no such thing", "Cannot read .*a.arrow"),
    ],
)
def test_an_error_in_a_damaged_file_names_the_place(
    name: str, content: bytes, told: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(example_batches, "BATCH_BYTES", 60)
    (tmp_path / name).write_bytes(content)
    with pytest.raises(ValueError, match=told):
        list(ExampleFile.find(str(tmp_path / name), names={"y": "y"}).batches())


def test_the_name_of_a_file_determines_its_format() -> None:
    assert ExampleFile.find("A.CSV.GZ").form is Format.CSV
    assert ExampleFile.find("a.txt.zst", Format.NDJSON).codec == "zstd"
    for name, told in (("a.txt", "Cannot infer"), ("a.gz", "Cannot infer"), ("a.parquet.gz", "Decompress it")):
        with pytest.raises(ValueError, match=told):
            ExampleFile.find(name)
    with pytest.raises(ValueError, match="apply only to .csv, .arrow"):
        ExampleFile.find("a.ndjson", names={"y": "left"})
