"""Running migrations from code: by `python -m migrations`, by the service's check at its start, and by tests."""

from __future__ import annotations

from pathlib import Path

from alembic import command
from alembic.config import Config
from alembic.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import Connection
from sqlalchemy.exc import SQLAlchemyError

from core.database import Database


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


def problem(database: Database, ready: bool = True) -> str | None:
    """What is wrong with a database, in words for an operator; `ready`: it must be at the newest schema."""
    try:
        revision, expected = current(database), newest()
    except SQLAlchemyError as error:
        url = database.engine.url
        # of a password with an @ in it, a part would be taken for the host
        where = url.database if database.sqlite else f"{url.database} at {(url.host or '').rpartition('@')[2]}"
        return f"The database does not answer ({type(error).__name__}): {where}"
    if revision is None or is_known(revision):
        return "The database is not up to date. Run: amend migrate" if ready and revision != expected else None
    return f"The database is newer ({revision}) than this version of Amend knows ({expected}). Update Amend."


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
