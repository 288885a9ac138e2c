"""Reading what is given on the command line: JSON in an argument, in a file or on standard input."""

import codecs
import json
import sys
from pathlib import Path
from typing import Any

from amend.commands.connection import fail


def parse_json(text: str, what: str) -> Any:
    """JSON from the argument itself, from a file (its name, or @name), or from standard input (-)."""
    content, name = text, None
    if text == "-" or text.startswith("@") or is_file(text):
        name = text.removeprefix("@")
        content = read_bytes(name).decode(errors="replace")
    try:
        return json.loads(content)
    except ValueError as error:
        if name is None:
            if not text.lstrip().startswith(("{", "[", '"')):
                read_bytes(text)  # says why it cannot be read
            fail(f"{what} is neither JSON nor a file: {error}")
        csv = "; CSV is not read here" if name.lower().endswith((".csv", ".tsv")) else ""
        place = "standard input" if name == "-" else name
        fail(f"{what} must be JSON, and {place} is not{csv}: {error}")


def parse_kind(text: str | None, what: str) -> Any:
    """As :func:`parse_json`; a bare word is short for the kind alone: ``binary`` for ``{"kind": "binary"}``."""
    if text is None:
        return None
    return {"kind": text} if text.isidentifier() else parse_json(text, what)


def read_bytes(name: str) -> bytes:
    if name == "-":
        return sys.stdin.buffer.read()
    try:
        return Path(name).read_bytes()
    except OSError as error:
        fail(f"cannot read {name}: {error.strerror}")


def read_lines(name: str) -> list[str]:
    """The lines of a file that have something in them."""
    try:
        lines = [line.decode().strip() for line in read_bytes(name).removeprefix(codecs.BOM_UTF8).splitlines()]
    except UnicodeDecodeError:
        fail(f"cannot read {name}: it is not in UTF-8")
    return [line for line in lines if line]


def read_table(name: str, suffix: str | None = None) -> Any:
    """An Arrow table of a file, whose name says what it is, unless the suffix is given."""
    try:
        import pyarrow as pa
        import pyarrow.csv as csv
        import pyarrow.parquet as parquet
    except ModuleNotFoundError:
        fail("reading a file takes pyarrow: pip install pyarrow")
    suffix = suffix or Path(name).suffix.lower()
    if suffix not in (".parquet", ".csv", ".arrow", ".arrows", ".feather"):
        fail(f"cannot tell by its name what {name} is: .parquet, .csv or .arrow")
    content = pa.py_buffer(read_bytes(name))
    try:
        if suffix == ".parquet":
            return parquet.read_table(pa.BufferReader(content))
        if suffix == ".csv":
            options = csv.ConvertOptions(null_values=[""], strings_can_be_null=True)
            return csv.read_csv(pa.BufferReader(content), convert_options=options)
        opened = pa.ipc.open_file if content[:6].to_pybytes() == b"ARROW1" else pa.ipc.open_stream
        return opened(pa.BufferReader(content)).read_all()
    except (pa.ArrowException, OSError) as error:
        fail(f"cannot read {name}: {error}")


def is_file(text: str) -> bool:
    try:
        return Path(text).is_file()
    except (OSError, ValueError):
        # JSON can be too long, or hold characters, for a name.
        return False
