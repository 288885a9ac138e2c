"""The undocumented functions of psycopg that Amend uses: several statements and a COPY in one message to the server.

`psycopg.generators` and `error_from_result` may change in any release of psycopg. Their only caller is
`core.ledger.postgres_append`, and `tests/core/ledger/test_psycopg_internals.py` says what each of them has to do.
"""

from collections.abc import Callable
from typing import Any

import psycopg
from psycopg import generators
from psycopg.copy import LibpqWriter
from psycopg.errors import error_from_result
from psycopg.pq import ExecStatus
from psycopg.pq.abc import PGresult

Driver = psycopg.Connection[Any]


def execute_together(driver: Driver, statements: str) -> list[PGresult]:
    """Send statements in one message; returns the results up to the end, or up to a COPY that waits for rows."""
    driver.pgconn.send_query(statements.encode())
    return read_results(driver)


def copy_writer(driver: Driver) -> Callable[[Any], None]:
    """A function that sends data to the COPY that waits for rows."""
    return LibpqWriter(driver.cursor()).write


def finish_copy(driver: Driver) -> None:
    """End the COPY and the statements after it."""
    driver.pgconn.put_copy_end()
    read_results(driver)


def abort_copy(driver: Driver, reason: bytes) -> None:
    """Fail the COPY, and with it the transaction."""
    driver.pgconn.put_copy_end(reason)
    driver.wait(generators.execute(driver.pgconn))


def read_results(driver: Driver) -> list[PGresult]:
    """The results of the statements sent so far; raises the server's error, if any."""
    results: list[PGresult] = driver.wait(generators.execute(driver.pgconn))
    if results[-1].status == ExecStatus.FATAL_ERROR:
        raise error_from_result(results[-1])
    return results
