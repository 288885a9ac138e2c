"""Looking for traces of people: in every byte of every file that we keep, and in a dump of the database."""

from __future__ import annotations

import base64
import json
import subprocess
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import psycopg
from sqlalchemy import make_url

from core.ledger.subject_hashes import subject_hash
from tests import servers
from tests.worker.deployment import Numbers


def traces_of(subject: str, ids: Iterable[str], x: Numbers, secret: bytes) -> dict[bytes, str]:
    """The bytes that tell of a person, in all the ways in which they could have been written; and what they are."""
    hashed = subject_hash(subject, secret)
    found = {subject.encode(): "subject", subject.encode("utf-16-le"): "subject, two bytes a letter"}
    found |= {id.encode(): f"id {id}" for id in ids}
    for what, raw in [("hash of the subject", hashed), *((f"input {i}", row.tobytes()) for i, row in enumerate(x))]:
        found |= {raw: what, raw.hex().encode(): f"{what}, as hex", raw.hex().upper().encode(): f"{what}, as HEX"}
        found |= dict.fromkeys(shifted(raw), f"{what}, as base64")
    for i, row in enumerate(x):
        found[row.astype(np.float64).tobytes()] = f"input {i}, as doubles"
        found |= {json.dumps(number).encode(): f"a number of input {i}" for number in row.tolist()}
        found |= {str(number).encode(): f"a number of input {i}, short" for number in row if len(str(number)) > 7}
    return found


def shifted(raw: bytes) -> Iterator[bytes]:
    """base64 of the bytes at each of the three places at which they can begin, without what depends on others."""
    for encode in (base64.b64encode, base64.urlsafe_b64encode):
        for before in range(3):
            text = encode(b"\0" * before + raw)
            yield text[4 if before else 0 : len(text) - 4]


def files(*folders: Path) -> Iterator[tuple[str, bytes]]:
    """All files below some folders, and their bytes; sockets and what vanishes meanwhile are left out."""
    for folder in folders:
        for path in folder.rglob("*"):
            if path.is_file():
                yield str(path), path.read_bytes()


def dump(url: str) -> Iterator[tuple[str, bytes]]:
    """What a PostgreSQL database tells: as pg_dump writes it, and every table as the server sends it."""
    where = make_url(url)
    address = where.set(drivername="postgresql").render_as_string(hide_password=False)
    program = next(Path("/usr/lib/postgresql").glob("*/bin/pg_dump"), None)
    if program is not None:
        done = subprocess.run([program, address], capture_output=True, check=False)
        if done.returncode == 0:  # one that is older than the server refuses
            yield "dump", done.stdout
    with psycopg.connect(servers.conninfo(url)) as connection:
        tables = connection.execute("SELECT tablename FROM pg_tables WHERE schemaname = 'public'").fetchall()
        for (table,) in tables:
            for form in ("text", "binary"):
                with connection.cursor().copy(f'COPY "{table}" TO STDOUT (FORMAT {form})') as copy:
                    yield f"table {table} as {form}", b"".join(bytes(part) for part in copy)


def found(traces: dict[bytes, str], places: Iterable[tuple[str, bytes]]) -> list[Any]:
    """Where the traces are."""
    return [(place, what) for place, content in places for trace, what in traces.items() if trace in content]
