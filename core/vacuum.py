"""Vacuuming: makes the database drop the bytes of deleted rows."""

from typing import Any, NamedTuple

from sqlalchemy import delete, update
from sqlalchemy.orm import Session

from core.clock import now
from core.database import Database, measure_size
from core.errors import Unavailable
from core.tables.bookkeeping import Metadata

VACUUM_DUE = "vacuum_due"
MAX_REWRITE_BYTES = 2 * 2**30
"""The largest SQLite file that is rewritten as part of other work."""
REWRITTEN_SUFFIX = b" rewritten"
"""Suffix of the mark once the file was rewritten and only the write-ahead log remains to be emptied."""
CHECKPOINT_MILLISECONDS = 200


class Vacuumed(NamedTuple):
    """What `vacuum` did."""

    rewritten: bool
    """Whether an SQLite file was rewritten."""
    log_emptied: bool
    """Whether the write-ahead log was emptied; False if a reader prevented it. Always True for PostgreSQL."""


def vacuum(database: Database, rewrite: bool = True) -> Vacuumed:
    """Drop the bytes of deleted rows.

    SQLite overwrites them, but leaves copies where it moved rows between pages, so the file is rewritten.
    """
    with database.engine.connect() as connection:
        # the driver's own connection, because these statements cannot run inside a transaction
        driver: Any = connection.connection.driver_connection
        if database.sqlite:
            with database.read() as session:
                rewrite = rewrite and measure_size(session) <= MAX_REWRITE_BYTES
            return Vacuumed(rewrite, vacuum_file(database, driver, rewrite))
        driver.autocommit = True
        try:
            driver.execute("VACUUM examples, erasures, idempotency_records")
        finally:
            driver.autocommit = False
    return Vacuumed(rewritten=False, log_emptied=True)


def vacuum_file(database: Database, driver: Any, rewrite: bool) -> bool:
    """Rewrite an SQLite file and empty its log; returns False without waiting for long if a reader prevents that."""
    [timeout] = driver.execute("PRAGMA busy_timeout").fetchone()
    try:
        if rewrite:
            driver.execute("VACUUM")
        # the checkpoint blocks writers while it waits for readers
        driver.execute(f"PRAGMA busy_timeout = {CHECKPOINT_MILLISECONDS}")
        return not driver.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()[0]
    except database.engine.dialect.loaded_dbapi.OperationalError as error:
        raise Unavailable("database_busy", "The database is busy. It will be vacuumed later.") from error
    finally:
        driver.execute(f"PRAGMA busy_timeout = {timeout}")


def mark_vacuum_due(session: Session) -> None:
    """Have the scheduler vacuum the database after this transaction commits."""
    session.merge(Metadata(name=VACUUM_DUE, value=now().isoformat().encode()))


def vacuum_if_due(database: Database) -> None:
    """Vacuum the database if that is due."""
    with database.read() as session:
        mark = session.get(Metadata, VACUUM_DUE)
    if mark is not None:
        vacuum_marked(database, mark, rewrite=not mark.value.endswith(REWRITTEN_SUFFIX))


def vacuum_now(database: Database) -> Vacuumed:
    """Vacuum the database, whether or not that is due."""
    with database.read() as session:
        mark = session.get(Metadata, VACUUM_DUE)
    return vacuum_marked(database, mark)


def vacuum_marked(database: Database, mark: Metadata | None, rewrite: bool = True) -> Vacuumed:
    """Vacuum the database, and delete the mark, unless another transaction has set it again meanwhile."""
    done = vacuum(database, rewrite)
    if mark is None:
        return done
    with database.write() as session:
        ours = (Metadata.name == VACUUM_DUE, Metadata.value == mark.value)
        if done.log_emptied:
            session.execute(delete(Metadata).where(*ours))
        elif not mark.value.endswith(REWRITTEN_SUFFIX):
            session.execute(update(Metadata).where(*ours).values(value=mark.value + REWRITTEN_SUFFIX))
    return done
