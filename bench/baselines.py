"""The baselines of the service's benchmarks: direct reads and writes of a database, and `mlflow models serve`.

Each writer and reader is what a careful programmer would write for a single table, without HTTP, validation or history.
The contestants of Amend (contestants.py) implement the same interfaces, `Writer` and `Reader`.
"""

from __future__ import annotations

import os
import sqlite3
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import psycopg
from numpy.typing import NDArray

from bench.wire import child
from tests.servers import conninfo, free_port

FEATURES = 64
READ_ROWS = 20_000
"""Number of rows that a reader of SQLite fetches at a time."""


@dataclass(frozen=True)
class Batch:
    """Labelled examples with unique ids."""

    ids: list[str]
    y: NDArray[np.int64]
    x: NDArray[np.float32]

    def __len__(self) -> int:
        return len(self.ids)

    def rows(self) -> list[tuple[str, float, bytes]]:
        return list(zip(self.ids, self.y.astype(float).tolist(), map(bytes, self.x), strict=True))


class Batches:
    """Generates batches of examples with new ids."""

    def __init__(self, seed: int = 0) -> None:
        self.random = np.random.default_rng(seed)
        self.made = 0

    def one(self, size: int) -> Batch:
        x = self.random.standard_normal((size, FEATURES), dtype=np.float32)
        ids = [f"example-{i:010d}" for i in range(self.made, self.made + size)]
        self.made += size
        return Batch(ids, (x[:, 0] > 0).astype(np.int64), x)


class Writer(Protocol):
    """Stores batches. Only `write` is timed."""

    name: str

    def payload(self, batch: Batch) -> Any: ...

    def connect(self) -> Any: ...

    def write(self, connection: Any, payload: Any) -> None: ...


class Plain:
    """A table that is written without the service. `LEDGER` is a copy of the service's own table, with all indexes. The
    others lack the index that detects duplicates.
    """

    LEDGER, KEY, BARE = "plain, the ledger's table", "plain, key on id", "plain, no index"

    def __init__(self, name: str) -> None:
        self.name = name
        self.ledger = name == self.LEDGER
        self.table = {self.LEDGER: "examples", self.KEY: "plain_key", self.BARE: "plain"}[name]
        self.columns = ["id", "y", "x"] + ["model_id", "position", "holdout"] * self.ledger
        self.types = ["text", "float8", "bytea"] + ["int4", "int8", "bool"] * self.ledger
        self.positions = count(1)

    def create(self, text: str, number: str, data: str) -> str:
        key = " PRIMARY KEY" if self.name == self.KEY else ""
        return f"CREATE TABLE {self.table} (id {text}{key}, y {number}, x {data})"

    def payload(self, batch: Batch) -> list[tuple[Any, ...]]:
        if not self.ledger:
            return batch.rows()
        return [(*row, 1, next(self.positions), False) for row in batch.rows()]


class PostgresWriter(Plain):
    """Uses one binary COPY and one commit per batch."""

    def __init__(self, url: str, name: str) -> None:
        super().__init__(name)
        self.url = conninfo(url)
        if not self.ledger:
            with psycopg.connect(self.url) as connection:
                connection.execute(self.create("text", "float8", "bytea"))

    def connect(self) -> psycopg.Connection:
        return psycopg.connect(self.url)

    def write(self, connection: psycopg.Connection, payload: list[tuple[Any, ...]]) -> None:
        copying = f"COPY {self.table} ({', '.join(self.columns)}) FROM STDIN (FORMAT BINARY)"
        with connection.cursor() as cursor, cursor.copy(copying) as copy:
            copy.set_types(self.types)
            for row in payload:
                copy.write_row(row)
        connection.commit()


class SqliteWriter(Plain):
    """Uses one executemany and one transaction per batch, with the durability settings of Amend."""

    def __init__(self, path: Path, name: str) -> None:
        super().__init__(name)
        self.path = path
        if not self.ledger:
            connection = self.connect()
            connection.execute(self.create("TEXT", "REAL", "BLOB"))
            connection.close()

    def connect(self) -> sqlite3.Connection:
        connection = sqlite3.connect(self.path, timeout=60, isolation_level=None, check_same_thread=False)
        connection.execute("PRAGMA journal_mode=WAL")
        connection.execute("PRAGMA synchronous=FULL")
        return connection

    def write(self, connection: sqlite3.Connection, payload: list[tuple[Any, ...]]) -> None:
        marks = ", ".join("?" * len(self.columns))
        connection.execute("BEGIN IMMEDIATE")
        connection.executemany(f"INSERT INTO {self.table} ({', '.join(self.columns)}) VALUES ({marks})", payload)
        connection.execute("COMMIT")


class Reader(Protocol):
    """Reads every row of a table once and returns their number."""

    name: str

    def read(self) -> int: ...


class PostgresReader:
    """Reads the ledger's table with COPY TO STDOUT, as raw bytes or parsed into Python rows."""

    def __init__(self, url: str, parsed: bool) -> None:
        self.name = "plain COPY, parsed rows" if parsed else "plain COPY, unread bytes"
        self.url, self.parsed = conninfo(url), parsed

    def read(self) -> int:
        with psycopg.connect(self.url) as connection, connection.cursor() as cursor:
            with cursor.copy("COPY examples (position, y, x) TO STDOUT (FORMAT BINARY)") as copy:
                if self.parsed:
                    copy.set_types(["int8", "float8", "bytea"])
                    return sum(1 for _ in copy.rows())
                for _ in copy:
                    pass
            return cursor.rowcount


class SqliteReader:
    """Reads the ledger's table with a plain SELECT."""

    name = "plain SELECT, Python rows"

    def __init__(self, path: Path) -> None:
        self.path = path

    def read(self) -> int:
        connection = sqlite3.connect(self.path)
        cursor = connection.execute("SELECT position, y, x FROM examples")
        count = 0
        while rows := cursor.fetchmany(READ_ROWS):
            count += len(rows)
        connection.close()
        return count


@contextmanager
def mlflow_serving(model: Any, folder: Path) -> Iterator[int]:
    """Run `mlflow models serve` with a scikit-learn model; yields its port."""
    os.environ["MLFLOW_DISABLE_TELEMETRY"] = "true"
    import mlflow.sklearn

    mlflow.sklearn.save_model(model, folder / "model", pip_requirements=["scikit-learn"])
    port = free_port()
    command = ["-m", "mlflow", "models", "serve", "-m", "model", "--env-manager", "local", "--port", str(port)]
    # MLflow looks for uvicorn on the PATH, which lacks it unless the virtual environment is activated.
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}"
    with child([sys.executable, *command], folder, {**os.environ, "PATH": path}, port, "/ping"):
        yield port
