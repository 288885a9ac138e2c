"""Having the database drop the bytes of rows that were deleted."""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa
from sqlalchemy import delete, update
from sqlalchemy.orm import Session

from core.database import Database, now
from core.erasure.receipt_text import describe_cleanup
from core.errors import Unavailable
from core.tables.bookkeeping import Metadata

VACUUM_DUE = "tidy"
MAX_REWRITE_BYTES = 2 * 2**30
"""The largest SQLite file that is rewritten as part of other work."""
REWRITTEN_SUFFIX = b" rewritten"
"""How the mark ends once the file was rewritten and only its log is left to be emptied."""
CHECKPOINT_MILLISECONDS = 200


def vacuum_now(database: Database) -> str:
    """Vacuum the database; what was done, for the receipt."""
    log_emptied = vacuum(database)
    rewritten = database.sqlite and size_of(database) <= MAX_REWRITE_BYTES
    return describe_cleanup(database.sqlite, rewritten, log_emptied)


def vacuum(database: Database, rewrite: bool = True) -> bool:
    """Have the database drop the bytes of deleted rows; False if somebody who reads kept it from that.

    SQLite overwrites them, but leaves copies behind where it moved rows from page to page: the file is written anew.
    """
    with database.engine.connect() as connection:
        # the driver's own connection: these statements may not run inside a transaction
        driver: Any = connection.connection.driver_connection
        if database.sqlite:
            return vacuum_file(database, driver, rewrite and size_of(database) <= MAX_REWRITE_BYTES)
        driver.autocommit = True
        try:
            driver.execute("VACUUM examples, erasures, answers")
        finally:
            driver.autocommit = False
    return True


def vacuum_file(database: Database, driver: Any, rewrite: bool) -> bool:
    """Write an SQLite file anew and empty its log. Nobody waits for long: it is tried again, should somebody read."""
    [patience] = driver.execute("PRAGMA busy_timeout").fetchone()
    try:
        if rewrite:
            driver.execute("VACUUM")
        # it keeps writers out while it waits for readers
        driver.execute(f"PRAGMA busy_timeout = {CHECKPOINT_MILLISECONDS}")
        return not driver.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()[0]
    except database.engine.dialect.loaded_dbapi.OperationalError as error:
        raise Unavailable("database_busy", "The database is busy; it is tidied later.") from error
    finally:
        driver.execute(f"PRAGMA busy_timeout = {patience}")


def size_of(database: Database) -> int:
    """Bytes of an SQLite file."""
    with database.read() as session:
        pages = [session.scalar(sa.text(f"PRAGMA {name}")) or 0 for name in ("page_count", "page_size")]
    return int(pages[0] * pages[1])


def mark_vacuum_due(session: Session) -> None:
    """Have the database tidied once this transaction is committed, by us or by whoever comes after us."""
    session.merge(Metadata(name=VACUUM_DUE, value=now().isoformat().encode()))


def vacuum_if_due(database: Database) -> None:
    """Tidy the database, if somebody meant to and could not."""
    with database.read() as session:
        mark = session.get(Metadata, VACUUM_DUE)
    if mark is None:
        return
    done = vacuum(database, rewrite=not mark.value.endswith(REWRITTEN_SUFFIX))
    with database.write() as session:
        ours = (Metadata.name == VACUUM_DUE, Metadata.value == mark.value)  # not what became due meanwhile
        if done:
            session.execute(delete(Metadata).where(*ours))
        elif not mark.value.endswith(REWRITTEN_SUFFIX):
            session.execute(update(Metadata).where(*ours).values(value=mark.value + REWRITTEN_SUFFIX))
