"""Copying a database to a file and back: SQLite by its own means, PostgreSQL with pg_dump and pg_restore."""

from __future__ import annotations

import os
import shutil
import sqlite3
import subprocess
from contextlib import closing
from pathlib import Path

import sqlalchemy as sa

from core.database import Database
from core.errors import Conflict, Invalid, Unavailable
from core.versions.store import sync_folder

FILES = {"sqlite": "database.sqlite", "postgresql": "database.dump"}
"""Name of the copy in a backup, by the kind of database."""
RUNNING = "Stop all processes of Amend first: service, workers, scheduler, and `amend up`."


def kind_of(database: Database) -> str:
    return "sqlite" if database.sqlite else "postgresql"


def save(database: Database, file: Path) -> None:
    """Write a consistent copy of a database, which may be in use."""
    if database.sqlite:
        with closing(sqlite3.connect(path_of(database))) as source, closing(sqlite3.connect(file)) as target:
            source.backup(target)
    else:
        run_program("pg_dump", database, "--format=custom", f"--file={file}")


def load(database: Database, file: Path) -> None:
    """Replace the content of a database that nobody uses by that of a copy."""
    if database.sqlite:
        path = path_of(database)
        new = path.with_name(f"{path.name}.restoring")
        shutil.copyfile(file, new)
        with new.open("rb") as written:
            os.fsync(written.fileno())
        for suffix in ("-wal", "-shm"):  # SQLite would write a log that is left of a lost database into the copy
            path.with_name(path.name + suffix).unlink(missing_ok=True)
        new.replace(path)
        sync_folder(path.parent)
    else:
        run_program("pg_restore", None, "--list", str(file))  # before anything is dropped
        drop_tables(database)
        options = ("--exit-on-error", "--single-transaction", "--clean", "--if-exists", "--no-owner", "--no-privileges")
        run_program("pg_restore", database, *options, str(file))


def require_unused(database: Database) -> None:
    """Raise Conflict if any other process uses the database."""
    if not database.sqlite:
        query = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()"
        with database.engine.connect() as connection:
            others = connection.exec_driver_sql(query).scalar() or 0
        database.close()
        if others:
            raise Conflict("database_in_use", f"The database has {others} other connections. {RUNNING}")
        return
    path = path_of(database)
    if path.exists():
        with closing(sqlite3.connect(path, timeout=0)) as connection:
            try:
                # leaving the WAL mode requires that no other process has the file open
                connection.execute("PRAGMA journal_mode=DELETE")
            except sqlite3.OperationalError:
                raise Conflict("database_in_use", f"Another process uses the database {path}. {RUNNING}") from None


def path_of(database: Database) -> Path:
    return Path(str(database.engine.url.database))


def drop_tables(database: Database) -> None:
    """Drop all tables, those of newer releases included; pg_restore drops everything else that the copy contains."""
    with database.engine.begin() as connection:
        found = sa.MetaData()
        found.reflect(connection)
        found.drop_all(connection)
    database.close()


def run_program(name: str, database: Database | None, *arguments: str) -> None:
    """Run a program of PostgreSQL. Raises Invalid if it is not installed, and Unavailable if it fails."""
    if shutil.which(name) is None:
        hint = "Install PostgreSQL's client programs, of the server's release or newer, or run it where they are."
        raise Invalid("program_missing", f"{name} is not on the PATH. {hint}")
    environment, place = dict(os.environ), []
    if database is not None:
        url = database.engine.url
        if url.password:
            environment["PGPASSWORD"] = url.password  # not on the command line, which every user can see
        shown = url.set(drivername="postgresql", password=None)
        place = [f"--dbname={shown.render_as_string(hide_password=False)}"]
    done = subprocess.run([name, *place, *arguments], env=environment, capture_output=True, text=True)
    if done.returncode:
        raise Unavailable("program_failed", f"{name} failed: {done.stderr.strip() or done.returncode}")
