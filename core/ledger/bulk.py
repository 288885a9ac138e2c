"""Fast reads and writes of examples: COPY and binary cursors on PostgreSQL, long INSERTs on SQLite.

These functions use the drivers directly: SQLAlchemy would take longer than the database itself.
"""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from functools import lru_cache
from operator import itemgetter
from struct import pack
from typing import Any, cast

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray
from sqlalchemy import Connection
from sqlalchemy.exc import IntegrityError, OperationalError
from sqlalchemy.orm import Session

from core.database import is_read_only_error
from core.ledger import sqlite_insert
from core.ledger.batch import Batch
from core.ledger.unseen_categories import without_nulls

Parameters = Mapping[str, int | float | str | bytes | datetime | Sequence[int] | None]
"""Parameters of a statement, by name."""
COLUMNS = "model_id, position, holdout, y, x, id, subject"
"""The columns of every batch; `weight`, `time`, `source` and `unseen` follow if the batch has any."""
TEXT_COLUMNS = "model_id, position, holdout, y, id, subject"
"""The same for inputs whose sizes differ: `x` is the last column."""
SIGNATURE = b"PGCOPY\n\xff\r\n\0" + bytes(8)
NULL = b"\xff\xff\xff\xff"
END = b"\xff\xff"
POSTGRES_EPOCH = np.datetime64("2000-01-01", "us")
"""PostgreSQL sends a time as microseconds since then."""
WEIGHT_SIZE = TIME_SIZE = (8).to_bytes(4, "big")
COPY_ROWS = 2048
"""Rows encoded at a time."""


def insert(session: Session, model_id: int, first: int, batch: Batch, holdout: NDArray[np.bool_]) -> None:
    """Store a batch at consecutive positions from `first`; raises IntegrityError if one of its ids is in force."""
    connection = session.connection()
    driver: Any = connection.connection.driver_connection
    with sqlalchemy_errors(connection):
        if connection.dialect.name == "sqlite":
            sqlite_insert.insert(driver, columns_of(batch), model_id, first, batch, holdout)
        else:
            with driver.cursor() as cursor, cursor.copy(copy_of(batch)) as copy:
                write_rows(copy.write, lay_out(model_id, batch, holdout), first)


def columns_of(batch: Batch) -> str:
    """The columns that a batch fills. Weights that are all 1 are neither sent nor stored."""
    given = {"weight": batch.stored_weights, "time": batch.times, "source": batch.sources, "unseen": batch.unseen}
    optional = [name for name, column in given.items() if column is not None]
    return ", ".join([TEXT_COLUMNS, *optional, "x"] if batch.x.dtype == object else [COLUMNS, *optional])


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
    _ = batch.subject_draws if None in batch.splits else None, batch.stored_weights, batch.features if sqlite else None


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
    size = None if batch.x.dtype == object else batch.x.shape[1] * batch.x.itemsize
    y, ids = batch.y[which], batch.ids[which].cast(pa.binary())
    optional = optional_fields(batch, which)
    kind, sizes = row_dtype(size, len(optional))
    rows = np.empty(len(y), kind)
    for name, value in sizes.items():
        rows[name] = value
    rows["model_id"], rows["holdout"], rows["y"] = model_id, holdout[which], y
    if size is not None:
        rows["x"] = batch.x[which].view(f"V{size}")[:, 0]
    rows["size of id"] = pc.binary_length(ids)
    ends = np.arange(0, (len(rows) + 1) * rows.itemsize, rows.itemsize, dtype=np.int32)
    heads = pa.Array.from_buffers(pa.binary(), len(rows), [None, pa.py_buffer(ends), pa.py_buffer(rows.view("u1"))])
    joined = pc.binary_join_element_wise(heads, ids, subject_fields(batch, which), *optional, b"")
    _, starts, data = joined.buffers()
    place = np.arange(8) + cast("Any", kind.fields)["position"][1]
    total = joined.total_values_length
    return CopyChunk(np.frombuffer(data, "u1")[:total], np.frombuffer(starts, "i4")[: len(y)], which.start, place)


@lru_cache
def row_dtype(size: int | None, optional: int) -> tuple[np.dtype[np.void], dict[str, int]]:
    """The dtype of the start of a row whose x has `size` bytes, and the values that are the same in all rows.

    The id, the subject and `optional` more fields, whose sizes differ, follow; without a size, x is one of them.
    """
    fields = [("model_id", ">i4"), ("position", ">i8"), ("holdout", "u1"), ("y", ">f8")]
    if size is not None:
        fields.append(("x", f"V{size}"))
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
    """The fields of weights, times, sources and unseen texts, each with its size, if the batch has any."""
    fields = []
    if batch.stored_weights is not None:
        weights = batch.stored_weights[which]
        fields.append(pa.array([NULL if w is None else WEIGHT_SIZE + pack(">d", w) for w in weights], pa.binary()))
    if batch.times is not None:
        since = (batch.times[which] - POSTGRES_EPOCH).astype(np.int64).astype(">i8").tobytes()
        given = enumerate((~np.isnat(batch.times[which])).tolist())
        values = [TIME_SIZE + since[8 * i : 8 * i + 8] if is_given else NULL for i, is_given in given]
        fields.append(pa.array(values, pa.binary()))
    for column in (batch.sources, batch.unseen):
        if column is not None:
            texts = [None if text is None else text.encode() for text in column[which]]
            fields.append(pa.array([NULL if t is None else len(t).to_bytes(4, "big") + t for t in texts], pa.binary()))
    if batch.x.dtype == object:
        fields.append(pa.array([len(x).to_bytes(4, "big") + x for x in batch.features[which]], pa.binary()))
    return fields


@dataclass(frozen=True)
class Rows:
    """Rows as arrays: positions (n,), targets (n,), inputs (n, width of one input), weights (n,)."""

    position: NDArray[np.int64]
    y: NDArray[np.float64]
    x: NDArray[Any]
    weight: NDArray[np.float64] | None = None
    """None: every weight is 1."""
    unseen: Sequence[str | None] | None = None
    """Texts of unseen category values; read only if rows are stored in different layouts."""

    def __len__(self) -> int:
        return len(self.position)


@dataclass(frozen=True)
class EncodedBy:
    """Reads the encodings of an encoder instead of raw inputs."""

    encoder: str
    """The key of the encoder: hexadecimal digits."""


StoredType = str | EncodedBy | None
"""The type of the inputs to read; None if rows are stored in different layouts."""


def to_rows(rows: list[Any], dtype: StoredType) -> Rows:
    """Convert rows of `columns_to_read` to arrays, in the order of their positions.

    Without a dtype, x is an array of bytes, and the texts of unseen values are the fifth column. Encodings are an array
    of bytes as well; None for rows that are not encoded yet.
    """
    position = np.fromiter(map(itemgetter(0), rows), np.int64, len(rows))
    y = np.fromiter(map(itemgetter(1), rows), np.float64, len(rows))
    if dtype is None or isinstance(dtype, EncodedBy):
        x: NDArray[Any] = np.fromiter(map(itemgetter(2), rows), object, len(rows))
    elif dtype == "object":
        x = np.fromiter(map(itemgetter(2), rows), object, len(rows))[:, None]
    else:
        # a bytearray, because torch warns about read-only arrays
        x = np.frombuffer(bytearray().join(map(itemgetter(2), rows)), dtype)
        x = x.reshape(len(rows), -1) if rows else x.reshape(0, 1)
    given, weight = list(map(itemgetter(3), rows)), None
    if given.count(None) < len(given):
        weight = np.array([1.0 if value is None else value for value in given])
    unseen = None if dtype is not None else without_nulls(list(map(itemgetter(4), rows)))
    if (np.diff(position) < 0).any():
        order = np.argsort(position)
        position, y, x = position[order], y[order], x[order]
        weight = None if weight is None else weight[order]
        unseen = None if unseen is None else [unseen[i] for i in order.tolist()]
    return Rows(position, y, x, weight, unseen)


def columns_to_read(dtype: StoredType) -> str:
    """The columns of a row that readers need: texts of unseen values only if rows are converted to other columns."""
    if isinstance(dtype, EncodedBy):
        ours = "encodings.model_id = examples.model_id AND encodings.position = examples.position"
        encoding = f"SELECT data FROM encodings WHERE {ours} AND encodings.encoder = '{dtype.encoder}'"
        return f"position, y, ({encoding}) AS x, weight"
    return "position, y, x, weight" if dtype is not None else "position, y, x, weight, unseen"


def select(session: Session, where: str, parameters: Parameters, dtype: StoredType) -> Rows:
    """The rows that satisfy a condition, ordered by position."""
    connection = session.connection()
    # sorted here: without statistics, PostgreSQL may sort the whole table for an ORDER BY
    query = f"SELECT {columns_to_read(dtype)} FROM examples WHERE {where}"
    with sqlalchemy_errors(connection):
        return to_rows(run(connection, query, parameters).fetchall(), dtype)


def select_at(
    session: Session, model_id: int, positions: Sequence[int], where: str, parameters: Parameters, dtype: StoredType
) -> Rows:
    """The rows at the given distinct positions that satisfy a condition. Each row is looked up by its primary key.

    The condition must not restrict positions: SQLite would then scan all rows that satisfy it.
    """
    return to_rows(look_up(session, model_id, positions, columns_to_read(dtype), where, parameters), dtype)


def select_with_subjects(
    session: Session, model_id: int, positions: Sequence[int], where: str, parameters: Parameters, dtype: StoredType
) -> tuple[Rows, dict[int, bytes]]:
    """The same rows, and by position the subjects of those that have one."""
    rows = look_up(session, model_id, positions, f"{columns_to_read(dtype)}, subject", where, parameters)
    return to_rows(rows, dtype), {row[0]: row[-1] for row in rows if row[-1] is not None}


def subjects_at(session: Session, model_id: int, positions: Sequence[int]) -> list[tuple[int, bytes]]:
    """The positions and subjects of the rows at the given distinct positions that have one."""
    return look_up(session, model_id, positions, "position, subject", "subject IS NOT NULL", {})


def look_up(
    session: Session, model_id: int, positions: Sequence[int], columns: str, where: str, parameters: Parameters
) -> list[Any]:
    connection = session.connection()
    values: dict[str, Any] = {**parameters, "model": model_id}
    query = f"SELECT {columns} FROM examples WHERE model_id = :model AND {where} AND position"
    if connection.dialect.name == "sqlite":
        listed = ", ".join(str(int(position)) for position in positions)
        query = f"{query} IN ({listed})"
    else:
        # OFFSET 0 forces one index lookup per position: without statistics, PostgreSQL would scan the whole table
        one = f"{query} = wanted.at OFFSET 0"
        query = f"SELECT one.* FROM unnest(CAST(:wanted AS BIGINT[])) AS wanted(at), LATERAL ({one}) AS one"
        values["wanted"] = list(positions)
    with sqlalchemy_errors(connection):
        return list(run(connection, query, values).fetchall())


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
