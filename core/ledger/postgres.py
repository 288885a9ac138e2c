"""Adding a batch on PostgreSQL with few round trips: all statements of the transaction in one message, then the rows.

`additions.add_new` sends the same statements one by one and waits for each response, mostly under the model's lock.
"""

from __future__ import annotations

from itertools import chain
from typing import Any

import numpy as np
import psycopg
from numpy.typing import NDArray
from psycopg import ClientCursor, generators
from psycopg.copy import LibpqWriter
from psycopg.errors import error_from_result
from psycopg.pq import ExecStatus
from psycopg.pq.abc import PGresult
from sqlalchemy import Connection

from core.database import EARLY_COMMIT
from core.ledger import bulk
from core.ledger.batch import Batch
from core.ledger.positions import ADVANCE_IF_SAME, Counts, advance_values
from core.tables.ledger import ChangeKind


def append(
    connection: Connection, model_id: int, holdout_fraction: float, batch: Batch, holdout: NDArray[np.bool_]
) -> int | None:
    """Store a batch at the model's next positions, in a transaction of its own; returns the last of them.

    None, with nothing stored, if there is no such model, or its holdout fraction or layout is another. Raises
    IntegrityError if one of the ids is in force already.
    """
    driver: Any = connection.connection.driver_connection
    chunks = bulk.lay_out(model_id, batch, holdout)
    ready = next(chunks)  # before the lock is taken
    counts = Counts.of_new(holdout)
    values = advance_values(model_id, len(batch), ChangeKind.ADDED, counts, None, float(holdout_fraction), batch.layout)
    advance = ClientCursor(driver).mogrify(bulk.to_psycopg(ADVANCE_IF_SAME), values)
    with bulk.sqlalchemy_errors(connection):
        # the server responds up to COPY, and then waits for the rows
        driver.pgconn.send_query(f"BEGIN; {advance}; {bulk.copy_of(batch)}; {EARLY_COMMIT}".encode())
        _, moved, _ = read_results(driver)
        if moved.ntuples == 0:
            driver.pgconn.put_copy_end(b"there is no such model")  # fails the COPY; the pool undoes the rest
            driver.wait(generators.execute(driver.pgconn))
            return None
        last = int(moved.get_value(0, 0) or 0)
        try:
            writer = LibpqWriter(driver.cursor())
            bulk.write_rows(writer.write, chain([ready], chunks), last - len(batch) + 1)
            driver.pgconn.put_copy_end()
        except BaseException:
            connection.invalidate()  # a connection in the middle of a COPY cannot be used for anything else
            raise
        read_results(driver)
    return last


def read_results(driver: psycopg.Connection[Any]) -> list[PGresult]:
    """The server's results until it is done or waits for rows; raises its error, if any."""
    results: list[PGresult] = driver.wait(generators.execute(driver.pgconn))
    if results[-1].status == ExecStatus.FATAL_ERROR:
        raise error_from_result(results[-1])
    return results
