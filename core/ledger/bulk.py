"""Fast reads and writes of examples: COPY and binary cursors on PostgreSQL, executemany on SQLite.

These functions use the drivers directly: SQLAlchemy would take longer than the database itself.
"""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from functools import lru_cache
from itertools import repeat
from typing import Any, cast

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray
from sqlalchemy import Connection
from sqlalchemy.exc import IntegrityError, OperationalError
from sqlalchemy.orm import Session

from core.database import is_read_only_error
from core.ledger.batch import Batch

Parameters = Mapping[str, int | float | str | bytes | datetime | Sequence[int] | None]
"""Parameters of a statement, by name."""
COLUMNS = "model_id, position, holdout, y, x, id, subject"
"""The columns of a batch whose weights are all 1; otherwise `weight` precedes them."""
SIGNATURE = b"PGCOPY\n\xff\r\n\0" + bytes(8)
NULL = b"\xff\xff\xff\xff"
END = b"\xff\xff"
POSTGRES_EPOCH = np.datetime64("2000-01-01", "us")
"""PostgreSQL sends a time as microseconds since then."""
TIME_SIZE = (8).to_bytes(4, "big")
COPY_ROWS = 2048
"""Rows encoded at a time."""


def insert(session: Session, model_id: int, first: int, batch: Batch, holdout: NDArray[np.bool_]) -> None:
    """Store a batch at consecutive positions from `first`; raises IntegrityError if one of its ids is in force."""
    connection = session.connection()
    driver: Any = connection.connection.driver_connection
    with sqlalchemy_errors(connection):
        if connection.dialect.name == "sqlite":
            weights = batch.stored_weights
            ours = (repeat(model_id, len(batch)), range(first, first + len(batch)), holdout.tolist())
            theirs: list[Sequence[Any]] = [batch.y.tolist(), batch.features, batch.ids.to_pylist(), batch.subjects]
            if batch.times is not None:  # as SQLAlchemy writes a time there
                theirs.append([time and time.isoformat(" ", "microseconds") for time in batch.times.tolist()])
            if batch.sources is not None:
                theirs.append(batch.sources)
            rows = zip(*([] if weights is None else [weights.tolist()]), *ours, *theirs, strict=True)
            placeholders = ", ".join("?" * (len(ours) + len(theirs) + (weights is not None)))
            driver.executemany(f"INSERT INTO examples ({columns_of(batch)}) VALUES ({placeholders})", rows)
        else:
            with driver.cursor() as cursor, cursor.copy(copy_of(batch)) as copy:
                write_rows(copy.write, lay_out(model_id, batch, holdout), first)


def columns_of(batch: Batch) -> str:
    """The columns that a batch fills. Weights that are all 1 are neither sent nor stored."""
    given = {"weight": batch.stored_weights, "time": batch.times, "source": batch.sources}
    before, *after = [name if column is not None else "" for name, column in given.items()]
    return ", ".join(filter(None, [before, COLUMNS, *after]))


def copy_of(batch: Batch) -> str:
    """The COPY statement for a batch."""
    return f"COPY examples ({columns_of(batch)}) FROM STDIN (FORMAT BINARY)"


def run(connection: Connection, query: str, values: Parameters) -> Any:
    """Run a statement with parameters `:name`, with either driver. The statement must not contain user input."""
    driver: Any = connection.connection.driver_connection
    if connection.dialect.name == "sqlite":
        return driver.execute(query, values)
    return driver.execute(to_psycopg(query), values, binary=True)


@lru_cache
def to_psycopg(query: str) -> str:
    return re.sub(r"(?<!:):([a-z_]+)", r"%(\1)s", query)


def prepare(batch: Batch, sqlite: bool) -> None:
    """Compute what `insert` needs, before a lock is taken."""
    _ = batch.subject_draws, batch.stored_weights, batch.features if sqlite else None


@dataclass(frozen=True)
class CopyChunk:
    """Rows in the format of PostgreSQL's binary COPY: a row is its number of fields, a field its size and its bytes."""

    data: NDArray[np.uint8]
    starts: NDArray[np.int32]
    """The offset of each row."""
    before: int
    """Number of rows of the batch that precede this chunk."""
    place: NDArray[np.int64]
    """Offsets of the bytes of the position within a row."""

    def from_position(self, first: int) -> memoryview:
        """The bytes of the chunk in a batch that starts at position `first`."""
        positions = np.arange(first + self.before, first + self.before + len(self.starts)).astype(">i8")
        self.data[self.starts[:, None] + self.place] = positions.view("u1").reshape(-1, 8)
        return self.data.data


def lay_out(model_id: int, batch: Batch, holdout: NDArray[np.bool_]) -> Iterator[CopyChunk]:
    """Encode a batch chunk by chunk, so that the server stores one chunk while the next is encoded."""
    for start in range(0, len(batch), COPY_ROWS):
        yield lay_out_chunk(model_id, batch, holdout, slice(start, start + COPY_ROWS))


def write_rows(write: Callable[[Any], None], chunks: Iterable[CopyChunk], first: int) -> None:
    """Write a batch that starts at position `first` to a COPY."""
    write(SIGNATURE)
    for chunk in chunks:
        write(chunk.from_position(first))
    write(END)


def lay_out_chunk(model_id: int, batch: Batch, holdout: NDArray[np.bool_], which: slice) -> CopyChunk:
    """Encode rows. Fields of fixed size come first and are laid out for all rows at once; Arrow appends the others."""
    size, weights = batch.x.shape[1] * batch.x.itemsize, batch.stored_weights
    y, ids = batch.y[which], batch.ids[which].cast(pa.binary())
    optional = optional_fields(batch, which)
    kind, sizes = row_dtype(size, weights is not None, len(optional))
    rows = np.empty(len(y), kind)
    for name, value in sizes.items():
        rows[name] = value
    rows["model_id"], rows["holdout"], rows["y"] = model_id, holdout[which], y
    if weights is not None:
        rows["weight"] = weights[which]
    rows["x"] = batch.x[which].view(f"V{size}")[:, 0]
    rows["size of id"] = pc.binary_length(ids)
    ends = np.arange(0, (len(rows) + 1) * rows.itemsize, rows.itemsize, dtype=np.int32)
    heads = pa.Array.from_buffers(pa.binary(), len(rows), [None, pa.py_buffer(ends), pa.py_buffer(rows.view("u1"))])
    joined = pc.binary_join_element_wise(heads, ids, subject_fields(batch, which), *optional, b"")
    _, starts, data = joined.buffers()
    size = joined.total_values_length
    place = np.arange(8) + cast("Any", kind.fields)["position"][1]
    return CopyChunk(np.frombuffer(data, "u1")[:size], np.frombuffer(starts, "i4")[: len(y)], which.start, place)


@lru_cache
def row_dtype(size: int, weighted: bool, optional: int) -> tuple[np.dtype[np.void], dict[str, int]]:
    """The dtype of the start of a row whose x has `size` bytes, and the values that are the same in all rows.

    The id, the subject and `optional` more fields, whose sizes differ, follow.
    """
    fields = [("weight", ">f8")] if weighted else []
    fields += [("model_id", ">i4"), ("position", ">i8"), ("holdout", "u1"), ("y", ">f8"), ("x", f"V{size}")]
    sized = [part for name, kind in fields for part in ((f"size of {name}", ">i4"), (name, kind))]
    same = {f"size of {name}": np.dtype(kind).itemsize for name, kind in fields}
    return np.dtype([("fields", ">i2"), *sized, ("size of id", ">i4")]), {"fields": len(fields) + 2 + optional, **same}


def subject_fields(batch: Batch, which: slice) -> pa.Scalar | pa.Array:
    """The last field of each row, with its size."""
    if batch.subjects.count(None) == len(batch):
        return pa.scalar(NULL, pa.binary())
    subjects = batch.subjects[which]
    return pa.array([NULL if s is None else len(s).to_bytes(4, "big") + s for s in subjects], pa.binary())


def optional_fields(batch: Batch, which: slice) -> list[pa.Array]:
    """The fields of times and sources, each with its size, if the batch has any."""
    fields = []
    if batch.times is not None:
        since = (batch.times[which] - POSTGRES_EPOCH).astype(np.int64).astype(">i8").tobytes()
        given = enumerate((~np.isnat(batch.times[which])).tolist())
        values = [TIME_SIZE + since[8 * i : 8 * i + 8] if is_given else NULL for i, is_given in given]
        fields.append(pa.array(values, pa.binary()))
    if batch.sources is not None:
        texts = [None if source is None else source.encode() for source in batch.sources[which]]
        fields.append(pa.array([NULL if t is None else len(t).to_bytes(4, "big") + t for t in texts], pa.binary()))
    return fields


@dataclass(frozen=True)
class Rows:
    """Rows as arrays: positions (n,), targets (n,), inputs (n, width of one input), weights (n,)."""

    position: NDArray[np.int64]
    y: NDArray[np.float64]
    x: NDArray[Any]
    weight: NDArray[np.float64] | None = None
    """None: every weight is 1."""

    def __len__(self) -> int:
        return len(self.position)


def to_rows(rows: list[tuple[int, float, bytes, float | None]], dtype: str | None) -> Rows:
    """Convert rows of position, y, the bytes of x, and weight to arrays. Without a dtype, x is an array of bytes."""
    position = np.fromiter((row[0] for row in rows), np.int64, len(rows))
    y = np.fromiter((row[1] for row in rows), np.float64, len(rows))
    if dtype is None:
        x: NDArray[Any] = np.fromiter((row[2] for row in rows), object, len(rows))
    else:
        # a bytearray, because torch warns about read-only arrays
        x = np.frombuffer(bytearray().join([row[2] for row in rows]), dtype)
        x = x.reshape(len(rows), -1) if rows else x.reshape(0, 1)
    given, weight = [row[3] for row in rows], None
    if given.count(None) < len(given):
        weight = np.array([1.0 if value is None else value for value in given])
    if (np.diff(position) < 0).any():
        order = np.argsort(position)
        position, y, x = position[order], y[order], x[order]
        weight = None if weight is None else weight[order]
    return Rows(position, y, x, weight)


def select(session: Session, where: str, parameters: Parameters, dtype: str | None) -> Rows:
    """The rows that satisfy a condition, ordered by position."""
    connection = session.connection()
    # sorted here: without statistics, PostgreSQL may sort the whole table for an ORDER BY
    query = f"SELECT position, y, x, weight FROM examples WHERE {where}"
    with sqlalchemy_errors(connection):
        return to_rows(run(connection, query, parameters).fetchall(), dtype)


def select_at(
    session: Session, model_id: int, positions: Sequence[int], where: str, parameters: Parameters, dtype: str | None
) -> Rows:
    """The rows at the given distinct positions that satisfy a condition. Each row is looked up by its primary key.

    The condition must not restrict positions: SQLite would then scan all rows that satisfy it.
    """
    connection = session.connection()
    values: dict[str, Any] = {**parameters, "model": model_id}
    query = f"SELECT position, y, x, weight FROM examples WHERE model_id = :model AND {where} AND position"
    if connection.dialect.name == "sqlite":
        listed = ", ".join(str(int(position)) for position in positions)
        query = f"{query} IN ({listed})"
    else:
        # OFFSET 0 forces one index lookup per position: without statistics, PostgreSQL would scan the whole table
        one = f"{query} = wanted.at OFFSET 0"
        query = f"SELECT one.* FROM unnest(CAST(:wanted AS BIGINT[])) AS wanted(at), LATERAL ({one}) AS one"
        values["wanted"] = list(positions)
    with sqlalchemy_errors(connection):
        return to_rows(run(connection, query, values).fetchall(), dtype)


def positions(session: Session, where: str, parameters: Parameters) -> NDArray[np.int64]:
    """The positions of the rows that satisfy a condition, in any order."""
    connection = session.connection()
    with sqlalchemy_errors(connection):
        rows = run(connection, f"SELECT position FROM examples WHERE {where}", parameters).fetchall()
    return np.fromiter((row[0] for row in rows), np.int64, len(rows))


@contextmanager
def sqlalchemy_errors(connection: Connection) -> Iterator[None]:
    """Translate the driver's errors to SQLAlchemy's. Messages of integrity errors are replaced: they quote data."""
    dbapi = connection.dialect.loaded_dbapi
    try:
        yield
    except dbapi.IntegrityError as error:
        raise IntegrityError("bulk path", None, type(error)("an id is already in force")) from None
    except dbapi.OperationalError as error:
        raise OperationalError("bulk path", None, error) from error
    except dbapi.InternalError as error:
        if not is_read_only_error(error):
            raise
        connection.invalidate()
        raise OperationalError("bulk path", None, error) from error
