"""Parses arguments of the command line: JSON in an argument, in a file or on standard input; tables in files."""

import codecs
import csv
import json
import sys
from pathlib import Path
from typing import Any

from amend.commands.connection import fail


def parse_json(text: str, what: str) -> Any:
    """Parse JSON from the argument itself, from a file (its name, or @name), or from standard input (-)."""
    content, name = text, None
    if text == "-" or text.startswith("@") or is_file(text):
        name = text.removeprefix("@")
        content = read_bytes(name).decode(errors="replace")
    try:
        return json.loads(content)
    except ValueError as error:
        if name is None:
            if not text.lstrip().startswith(("{", "[", '"')):
                fail(f"{what} is neither JSON nor the name of a file that can be read: {text}")
            fail(f"{what} is neither valid JSON nor a file: {error}.")
        source = "standard input" if name == "-" else name
        hint = " CSV is not supported here." if name.lower().endswith((".csv", ".tsv")) else ""
        fail(f"{what} must be JSON, but {source} is not: {error}.{hint}")


def parse_kind(text: str | None, what: str) -> Any:
    """As :func:`parse_json`, but a bare word stands for a kind: ``binary`` for ``{"kind": "binary"}``."""
    if text is None:
        return None
    return {"kind": text} if text.isidentifier() else parse_json(text, what)


def read_bytes(name: str) -> bytes:
    if name == "-":
        return sys.stdin.buffer.read()
    try:
        return Path(name).read_bytes()
    except OSError as error:
        fail(f"Cannot read {name}: {error.strerror}.")


def read_lines(name: str) -> list[str]:
    """The non-blank lines of a file."""
    try:
        lines = [line.decode().strip() for line in read_bytes(name).removeprefix(codecs.BOM_UTF8).splitlines()]
    except UnicodeDecodeError:
        fail(f"Cannot read {name}: the file is not encoded in UTF-8.")
    return [line for line in lines if line]


def read_requests(name: str) -> list[dict[str, Any]]:
    """The erasure requests of a CSV file, with the columns subject, aliases, received, reference and reason."""
    known = {"subject": "subject", "received": "received_at", "reference": "reference", "reason": "reason"}
    rows = csv.DictReader(read_lines(name))
    unknown = [column for column in rows.fieldnames or () if column not in (*known, "aliases")]
    if unknown or "subject" not in (rows.fieldnames or ()):
        problem = f"unknown column {unknown[0]}" if unknown else "the column subject is missing"
        fail(f"Cannot read {name}: {problem}. The columns are subject, aliases, received, reference and reason.")
    found = []
    for row in rows:
        request: dict[str, Any] = {field: row[column] for column, field in known.items() if row.get(column)}
        if aliases := [alias.strip() for alias in (row.get("aliases") or "").split("|") if alias.strip()]:
            request["subjects"] = aliases
        found.append(request)
    return found


def read_table(name: str) -> Any:
    """Read a file as an Arrow table. Its suffix tells the format."""
    try:
        import pyarrow as pa
        import pyarrow.csv as arrow_csv
        import pyarrow.parquet as parquet
    except ModuleNotFoundError:
        fail("Reading this file requires pyarrow. Run `pip install pyarrow`.")
    suffix = Path(name).suffix.lower()
    if suffix not in (".parquet", ".csv", ".arrow", ".arrows", ".feather"):
        fail(f"Cannot infer the format of {name} from its name. Use a .parquet, .csv or .arrow file.")
    content = pa.py_buffer(read_bytes(name))
    try:
        if suffix == ".parquet":
            return parquet.read_table(pa.BufferReader(content))
        if suffix == ".csv":
            options = arrow_csv.ConvertOptions(null_values=[""], strings_can_be_null=True)
            return arrow_csv.read_csv(pa.BufferReader(content), convert_options=options)
        open_table = pa.ipc.open_file if content[:6].to_pybytes() == b"ARROW1" else pa.ipc.open_stream
        return open_table(pa.BufferReader(content)).read_all()
    except (pa.ArrowException, OSError) as error:
        fail(f"Cannot read {name}: {error}")


def is_file(text: str) -> bool:
    try:
        return Path(text).is_file()
    except (OSError, ValueError):
        # JSON can be too long for a file name, or contain characters that a name cannot have.
        return False
