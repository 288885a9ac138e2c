"""What `core.ledger.psycopg_internals` relies on.

If one of these tests fails, an update of psycopg has changed an internal function. Adapt that module, or drop it and
have `core.ledger.additions.add_alone` call `add_new` on PostgreSQL as well, which costs a few more round trips.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import psycopg
import pytest
from psycopg.pq import ExecStatus

from core.database import Database
from core.ledger.psycopg_internals import abort_copy, copy_writer, execute_together, finish_copy

COPY = "COPY numbers FROM STDIN"


@pytest.fixture
def driver(database: Database) -> Iterator[Any]:
    if database.sqlite:
        pytest.skip("psycopg is the driver of PostgreSQL")
    with database.engine.connect() as connection:
        driver: Any = connection.connection.driver_connection
        driver.execute("CREATE TEMPORARY TABLE numbers (n int)")
        driver.commit()
        yield driver
        driver.rollback()
        driver.execute("DROP TABLE numbers")
        driver.commit()


def stored(driver: Any) -> list[int]:
    return [n for (n,) in driver.execute("SELECT n FROM numbers ORDER BY n")]


def test_one_message_returns_a_result_per_statement_and_stops_at_copy(driver: Any) -> None:
    results = execute_together(driver, f"BEGIN; SELECT 7; {COPY}; COMMIT")
    assert [result.status for result in results] == [
        ExecStatus.COMMAND_OK,
        ExecStatus.TUPLES_OK,
        ExecStatus.COPY_IN,
    ]
    assert results[1].get_value(0, 0) == b"7"
    abort_copy(driver, b"only the results matter here")


def test_rows_written_to_the_copy_are_committed_by_the_rest_of_the_message(driver: Any) -> None:
    execute_together(driver, f"BEGIN; {COPY}; COMMIT")
    write = copy_writer(driver)
    write(b"1\n")
    write(memoryview(b"2\n"))
    finish_copy(driver)
    driver.rollback()
    assert stored(driver) == [1, 2]


def test_an_aborted_copy_stores_nothing_and_leaves_the_connection_usable(driver: Any) -> None:
    execute_together(driver, f"BEGIN; INSERT INTO numbers VALUES (1); {COPY}; COMMIT")
    abort_copy(driver, b"the test aborts it")
    driver.rollback()
    assert stored(driver) == []


def test_errors_of_the_server_are_raised_as_the_exceptions_that_psycopg_defines(driver: Any) -> None:
    with pytest.raises(psycopg.errors.DivisionByZero):
        execute_together(driver, "BEGIN; SELECT 1/0; COMMIT")
