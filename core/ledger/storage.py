"""Examples in and out of the database by its bulk path: COPY and binary cursors, or SQLite's executemany.

These few functions talk to the drivers themselves: an object layer would cost more than the database.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sqlalchemy import Connection
from sqlalchemy.exc import IntegrityError, OperationalError
from sqlalchemy.orm import Session

COLUMNS = "model_id, position, holdout, y, id, subject, x"
TYPES = ["int4", "int8", "bool", "float8", "text", "bytea", "bytea"]

Row = tuple[int, int, bool, float, str, bytes | None, bytes]


def insert(session: Session, rows: Iterable[Row]) -> None:
    """Store rows; IntegrityError if one of their ids is in force already."""
    connection = session.connection()
    driver: Any = connection.connection.driver_connection
    with told(connection):
        if connection.dialect.name == "sqlite":
            driver.executemany(f"INSERT INTO examples ({COLUMNS}) VALUES (?, ?, ?, ?, ?, ?, ?)", rows)
        else:
            with (
                driver.cursor() as cursor,
                cursor.copy(f"COPY examples ({COLUMNS}) FROM STDIN (FORMAT BINARY)") as copy,
            ):
                copy.set_types(TYPES)
                for row in rows:
                    copy.write_row(row)


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
    """The rows that meet a condition, in the order of their positions.

    `where` is ours, never a caller's; values come as `:name`, as both drivers can be made to read them.
    """
    connection = session.connection()
    driver: Any = connection.connection.driver_connection
    # sorted here: asked to, PostgreSQL may sort the whole table as long as it has no statistics of it
    query = f"SELECT position, y, x FROM examples WHERE {where}"
    with told(connection):
        if connection.dialect.name == "sqlite":
            return block_of(driver.execute(query, parameters).fetchall(), dtype)
        for name in parameters:
            query = query.replace(f":{name}", f"%({name})s")
        with driver.cursor(binary=True) as cursor:
            return block_of(cursor.execute(query, parameters).fetchall(), dtype)


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
