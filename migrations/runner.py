"""Running migrations from code, and checking at startup that the database can be used."""

from __future__ import annotations

import sys
from pathlib import Path

from alembic import command
from alembic.config import Config
from alembic.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import Connection
from sqlalchemy.exc import SQLAlchemyError

from core.database import Database
from core.settings import Settings
from migrations.statistics import write_statistics

CHECK = "Check AMEND_DATABASE_URL and AMEND_DATABASE_PASSWORD."
REASONS = {
    "password authentication failed": "The database {place} rejected the user {user} or the password",
    "no password supplied": "The database {place} requires a password for the user {user}",
    "unable to open database file": "Cannot open the database file {place}",
    "file is not a database": "The file {place} is not an SQLite database",
    "readonly database": "Cannot write to the database file {place}",
    "permission denied for": "The user {user} may not create tables in the database {place}",
    'FATAL:  role "': "The user {user} does not exist in the database {place}",
    'FATAL:  database "': "The database {place} does not exist",
    "resolve host": "Cannot resolve the host of the database {place}",
    "Connection refused": "The database {place} does not respond",
    "timeout": "The database {place} does not respond",
}
"""Messages by a part of the driver's message: PostgreSQL reports no error code for failed connections."""


def make_config(connection: Connection | None = None) -> Config:
    config = Config()
    config.set_main_option("script_location", str(Path(__file__).parent))
    config.attributes["connection"] = connection
    return config


def newest() -> str | None:
    """The revision that this code expects."""
    return ScriptDirectory.from_config(make_config()).get_current_head()


def is_known(revision: str) -> bool:
    """Whether this code can upgrade from a revision to the newest."""
    return any(script.revision == revision for script in ScriptDirectory.from_config(make_config()).walk_revisions())


def current(database: Database) -> str | None:
    """The revision of a database; None if it is empty."""
    with database.engine.connect() as connection:
        return MigrationContext.configure(connection).get_current_revision()


def open_database(settings: Settings) -> Database:
    """Open the database of a starting process, or exit with a message for operators if it cannot be used."""
    database = Database(settings)
    if problem := find_problem(database):
        sys.exit(problem)
    return database


def find_problem(database: Database, ready: bool = True) -> str | None:
    """A message for operators if a database cannot be used. With `ready`, it must have the newest schema."""
    try:
        revision, expected = current(database), newest()
    except SQLAlchemyError as error:
        return describe(database, error)
    if revision is None and ready:
        return f"The database {place(database)} is empty. Run `amend migrate`. {CHECK}"
    if revision is None or is_known(revision):
        return "The database is not up to date. Run `amend migrate`." if ready and revision != expected else None
    return f"The database is newer ({revision}) than this version of Amend ({expected}). Update Amend."


def describe(database: Database, error: SQLAlchemyError) -> str:
    """Why a database cannot be used, in one line. The driver's own message is not shown: it may quote a password."""
    reason = find_reason(error) or f"The database {{place}} cannot be used ({type(error).__name__})"
    return f"{reason.format(place=place(database), user=database.engine.url.username)}. {CHECK}"


def find_reason(error: SQLAlchemyError) -> str | None:
    """The template of a message for an error that operators can fix; None for other errors."""
    message = str(getattr(error, "orig", None) or error)
    return next((reason for part, reason in REASONS.items() if part in message), None)


def place(database: Database) -> str:
    url = database.engine.url
    return str(url.database) if database.sqlite else f"{url.database} at {url.host or 'this machine'}"


def lock(connection: Connection) -> None:
    """Wait for other processes that migrate the same database, such as replicas that start at the same time."""
    if connection.dialect.name == "postgresql":
        connection.exec_driver_sql("SELECT pg_advisory_xact_lock(4606)")


def upgrade(database: Database, revision: str = "head") -> None:
    with database.engine.execution_options(writes=True).begin() as connection:
        lock(connection)
        command.upgrade(make_config(connection), revision)
        write_statistics(connection)


def downgrade(database: Database, revision: str) -> None:
    with database.engine.execution_options(writes=True).begin() as connection:
        lock(connection)
        command.downgrade(make_config(connection), revision)
