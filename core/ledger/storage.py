"""Examples in and out of the database by its bulk path: COPY and binary cursors, or SQLite's executemany.

These few functions talk to the drivers themselves: an object layer would cost more than the database.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sqlalchemy.exc import IntegrityError
from sqlalchemy.orm import Session

COLUMNS = "model_id, position, holdout, y, id, subject, x"
TYPES = ["int4", "int8", "bool", "float8", "text", "bytea", "bytea"]

Row = tuple[int, int, bool, float, str, bytes | None, bytes]


def insert(session: Session, rows: Iterable[Row]) -> None:
    """Store rows; IntegrityError if one of their ids is in force already. The caller has a savepoint."""
    connection = session.connection()
    driver: Any = connection.connection.driver_connection
    try:
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
    except connection.dialect.loaded_dbapi.IntegrityError as error:
        # the statement and its data stay out of the error
        raise IntegrityError("bulk insert", None, type(error)("an id is in force already")) from None


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
    return Block(position, y, x.reshape(len(rows), -1) if rows else x.reshape(0, 1))


def select(session: Session, where: str, parameters: dict[str, Any], dtype: str, limit: int) -> Block:
    """Up to `limit` rows that meet a condition, in the order of their positions.

    `where` is ours, never a caller's; values come as `:name`, as both drivers can be made to read them.
    """
    connection = session.connection()
    driver: Any = connection.connection.driver_connection
    query = f"SELECT position, y, x FROM examples WHERE {where} ORDER BY position LIMIT {int(limit)}"
    if connection.dialect.name == "sqlite":
        return block_of(driver.execute(query, parameters).fetchall(), dtype)
    for name in parameters:
        query = query.replace(f":{name}", f"%({name})s")
    with driver.cursor(binary=True) as cursor:
        return block_of(cursor.execute(query, parameters).fetchall(), dtype)
