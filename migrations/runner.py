"""Running migrations from code: by `python -m migrations`, by the service's check at its start, and by tests."""

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

SETTING = "AMEND_DATABASE_URL and AMEND_DATABASE_PASSWORD"
REASONS = {
    "password authentication failed": "The database {place} refuses the user {user} or their password",
    "no password supplied": "The database {place} wants a password of the user {user}",
    "unable to open database file": "The file {place} of the database cannot be opened",
    "file is not a database": "The file {place} is not a database of SQLite",
    "readonly database": "The file {place} of the database cannot be written",
    "permission denied for": "The user {user} may not make tables in the database {place}",
    'FATAL:  role "': "There is no user {user} of the database {place}",
    'FATAL:  database "': "There is no database {place}",
    "resolve host": "There is no host of the database {place}",
    "Connection refused": "Nobody answers for the database {place}",
    "timeout": "Nobody answers for the database {place}",
}
"""By what a driver says, in English: PostgreSQL gives no code to who does not get in."""


def config(connection: Connection | None = None) -> Config:
    made = Config()
    made.set_main_option("script_location", str(Path(__file__).parent))
    made.attributes["connection"] = connection
    return made


def newest() -> str | None:
    """The revision that this code expects."""
    return ScriptDirectory.from_config(config()).get_current_head()


def is_known(revision: str) -> bool:
    """Whether this code knows how to get from a revision to the newest."""
    return any(script.revision == revision for script in ScriptDirectory.from_config(config()).walk_revisions())


def current(database: Database) -> str | None:
    """The revision that a database is at; None: empty."""
    with database.engine.connect() as connection:
        return MigrationContext.configure(connection).get_current_revision()


def open_database(settings: Settings) -> Database:
    """The database of a process that begins; the process ends in words for an operator if it cannot be used."""
    database = Database(settings)
    if found := problem(database):
        sys.exit(found)
    return database


def problem(database: Database, ready: bool = True) -> str | None:
    """What is wrong with a database, in words for an operator; `ready`: it must be at the newest schema."""
    try:
        revision, expected = current(database), newest()
    except SQLAlchemyError as error:
        return described(database, error)
    if revision is None and ready:
        return f"The database {place(database)} is empty. Run: amend migrate; or see {SETTING}"
    if revision is None or is_known(revision):
        return "The database is not up to date. Run: amend migrate" if ready and revision != expected else None
    return f"The database is newer ({revision}) than this version of Amend knows ({expected}). Update Amend."


def described(database: Database, error: SQLAlchemyError) -> str:
    """Why a database cannot be used, in one line for an operator. What its driver says may quote a password: it is
    looked at, but not passed on."""
    problem = reason(error) or f"The database {{place}} cannot be used ({type(error).__name__})"
    return f"{problem.format(place=place(database), user=database.engine.url.username)}: see {SETTING}"


def reason(error: SQLAlchemyError) -> str | None:
    """What an operator can do something about; None if it is something else."""
    said = str(getattr(error, "orig", None) or error)
    return next((problem for words, problem in REASONS.items() if words in said), None)


def place(database: Database) -> str:
    url = database.engine.url
    return str(url.database) if database.sqlite else f"{url.database} at {url.host or 'this machine'}"


def lock(connection: Connection) -> None:
    """Wait for others who set up the same database: two replicas that start together would both begin."""
    if connection.dialect.name == "postgresql":
        connection.exec_driver_sql("SELECT pg_advisory_xact_lock(4606)")


def upgrade(database: Database, revision: str = "head") -> None:
    with database.engine.execution_options(writes=True).begin() as connection:
        lock(connection)
        command.upgrade(config(connection), revision)


def downgrade(database: Database, revision: str) -> None:
    with database.engine.execution_options(writes=True).begin() as connection:
        lock(connection)
        command.downgrade(config(connection), revision)
