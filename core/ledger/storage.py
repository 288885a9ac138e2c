"""Examples in and out of the database by its bulk path: COPY and binary cursors, or SQLite's executemany.

These few functions talk to the drivers themselves: an object layer would cost more than the database.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import chain, repeat
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sqlalchemy import Connection
from sqlalchemy.exc import IntegrityError, OperationalError
from sqlalchemy.orm import Session

from core.database import now
from core.ledger.batch import Batch

COLUMNS = "model_id, position, holdout, y, x, subject, id"
SIGNATURE = b"PGCOPY\n\xff\r\n\0" + bytes(8)
NULL = b"\xff\xff\xff\xff"
END = b"\xff\xff"
PIECE = 2048
"""Rows that are laid out at once."""
SIZES = [size.to_bytes(4, "big") for size in range(256)]


def insert(session: Session, model_id: int, first: int, batch: Batch, holdout: NDArray[np.bool_]) -> None:
    """Store a batch from position `first` on; IntegrityError if one of its ids is in force already."""
    connection = session.connection()
    driver: Any = connection.connection.driver_connection
    with told(connection):
        if connection.dialect.name == "sqlite":
            ours = (repeat(model_id, len(batch)), range(first, first + len(batch)), holdout.tolist())
            rows = zip(*ours, batch.y.tolist(), batch.features, batch.subjects, batch.ids, strict=True)
            driver.executemany(f"INSERT INTO examples ({COLUMNS}) VALUES (?, ?, ?, ?, ?, ?, ?)", rows)
        else:
            command = f"COPY examples ({COLUMNS}) FROM STDIN (FORMAT BINARY)"
            with driver.cursor() as cursor, cursor.copy(command) as copy:
                # by and by: the server stores one piece while the next is laid out, and memory holds one
                copy.write(SIGNATURE)
                for start in range(0, len(batch), PIECE):
                    copy.write(copied(model_id, first, batch, holdout, slice(start, start + PIECE)))
                copy.write(END)


MOVE = """UPDATE models SET head = :last, train_count = train_count + :train,
    holdout_count = holdout_count + :holdout, removed_count = removed_count + :removed WHERE id = :model"""
NOTE = """INSERT INTO changes (model_id, first, last, kind, value, created_at)
    VALUES (:model, :first, :last, :kind, :value, :now)"""


def head(session: Session, model_id: int) -> tuple[int, float] | None:
    """The head of a model's ledger and its holdout share; the row is held until the end of the transaction."""
    connection = session.connection()
    query = "SELECT head, policy ->> 'holdout' FROM models WHERE id = :model"
    if connection.dialect.name != "sqlite":  # its transactions are alone anyway
        query += " FOR UPDATE"
    with told(connection):
        row = run(connection, query, {"model": model_id}).fetchone()
    return None if row is None else (row[0], float(row[1]))


def advance(
    session: Session,
    model_id: int,
    first: int,
    last: int,
    kind: str,
    value: dict[str, Any] | None,
    counts: dict[str, int],
) -> None:
    """Move a model's head to `last`, change its counts, and note what happened."""
    connection = session.connection()
    sqlite = connection.dialect.name == "sqlite"
    # as SQLAlchemy writes a time there
    at = now().replace(tzinfo=None).isoformat(" ", "microseconds") if sqlite else now()
    given = None if value is None else json.dumps(value)
    values = {"model": model_id, "first": first, "last": last, "kind": kind, "value": given, "now": at, **counts}
    with told(connection):
        for statement in (MOVE, NOTE) if sqlite else (f"WITH moved AS ({MOVE}) {NOTE}",):
            run(connection, statement, values)


def run(connection: Connection, query: str, values: dict[str, Any]) -> Any:
    """Run a statement of ours, never a caller's; values come as `:name`, as both drivers can be made to read them."""
    driver: Any = connection.connection.driver_connection
    if connection.dialect.name == "sqlite":
        return driver.execute(query, values)
    return driver.execute(re.sub(r"(?<!:):([a-z]+)", r"%(\1)s", query), values, binary=True)


def prepare(batch: Batch, sqlite: bool) -> None:
    """Do what can be done for `insert` before a lock is taken."""
    _ = batch.draws, batch.features if sqlite else tails(batch)


def copied(model_id: int, first: int, batch: Batch, holdout: NDArray[np.bool_], piece: slice) -> bytes:
    """Rows as PostgreSQL's binary COPY reads them: a row is its number of fields, a field its size and its bytes.

    Fields of fixed size come first and are laid out for all rows at once.
    """
    size = batch.x.shape[1] * batch.x.itemsize
    fields = [("model_id", ">i4"), ("position", ">i8"), ("holdout", "u1"), ("y", ">f8"), ("x", f"V{size}")]
    sized = [part for name, kind in fields for part in ((f"size of {name}", ">i4"), (name, kind))]
    y = batch.y[piece]
    rows = np.empty(len(y), [("fields", ">i2"), *sized])
    rows["fields"] = len(fields) + 2
    for name, kind in fields:
        rows[f"size of {name}"] = np.dtype(kind).itemsize
    rows["model_id"], rows["holdout"], rows["y"] = model_id, holdout[piece], y
    rows["position"] = np.arange(len(y)) + (first + piece.start)
    rows["x"] = batch.x[piece].view(f"V{size}")[:, 0]
    data, width = rows.tobytes(), rows.itemsize
    heads = [data[i : i + width] for i in range(0, len(data), width)]
    return b"".join(chain.from_iterable(zip(heads, tails(batch)[piece], strict=True)))


def tails(batch: Batch) -> list[bytes]:
    """The fields of a row whose size varies: subject and id. Made once for a batch."""
    made: list[bytes] | None = vars(batch).get("tails")
    if made is None:
        if any(batch.subjects):
            subjects = [NULL if s is None else sized(s) + s for s in batch.subjects]
            made = [s + sized(i) + i for s, i in zip(subjects, batch.encoded, strict=True)]
        else:
            made = [NULL + sized(i) + i for i in batch.encoded]
        vars(batch)["tails"] = made
    return made


def sized(field: bytes) -> bytes:
    return SIZES[len(field)] if len(field) < len(SIZES) else len(field).to_bytes(4, "big")


@dataclass(frozen=True)
class Block:
    """Rows as arrays: positions (n,), targets (n,), inputs (n, numbers of one input)."""

    position: NDArray[np.int64]
    y: NDArray[np.float64]
    x: NDArray[Any]

    def __len__(self) -> int:
        return len(self.position)


def block_of(rows: list[tuple[int, float, bytes]], dtype: str) -> Block:
    """Arrays from rows of position, y and the bytes of x."""
    position = np.fromiter((row[0] for row in rows), np.int64, len(rows))
    y = np.fromiter((row[1] for row in rows), np.float64, len(rows))
    # a bytearray, since torch wants arrays it could write to
    x = np.frombuffer(bytearray().join([row[2] for row in rows]), dtype)
    x = x.reshape(len(rows), -1) if rows else x.reshape(0, 1)
    if (np.diff(position) < 0).any():
        order = np.argsort(position)
        position, y, x = position[order], y[order], x[order]
    return Block(position, y, x)


def select(session: Session, where: str, parameters: dict[str, Any], dtype: str) -> Block:
    """The rows that meet a condition, in the order of their positions."""
    connection = session.connection()
    # sorted here: asked to, PostgreSQL may sort the whole table as long as it has no statistics of it
    query = f"SELECT position, y, x FROM examples WHERE {where}"
    with told(connection):
        return block_of(run(connection, query, parameters).fetchall(), dtype)


@contextmanager
def told(connection: Connection) -> Iterator[None]:
    """The driver's errors as SQLAlchemy's, as everywhere else; without their text, which quotes data."""
    dbapi = connection.dialect.loaded_dbapi
    try:
        yield
    except dbapi.IntegrityError as error:
        raise IntegrityError("bulk path", None, type(error)("an id is in force already")) from None
    except dbapi.OperationalError as error:
        raise OperationalError("bulk path", None, error) from error
