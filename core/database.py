"""The database: SQLite or PostgreSQL behind one `Database`, and the column types that both share.

Every write is one transaction that the caller opens with `Database.write()`; nothing below it commits.
"""

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from enum import StrEnum
from typing import Any

import sqlalchemy as sa
from sqlalchemy import event
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.dialects.postgresql import JSONB
from sqlalchemy.engine import Dialect
from sqlalchemy.orm import DeclarativeBase, Session
from sqlalchemy.types import TypeDecorator

from core.errors import Invalid, Unavailable
from core.settings import Settings

READ_ONLY_SQLSTATE = "25006"
"""SQLSTATE of a write to a server that accepts none."""
PING_AFTER_SECONDS = 2.0
"""A connection that was idle for longer is pinged before use. Pinging always would be a tenth of the work."""


EARLY_COMMIT = "SET LOCAL synchronous_commit = off; COMMIT; SELECT pg_logical_emit_message(true, 'amend', '')"
"""Commits on PostgreSQL as safely as COMMIT does, but releases the locks before it waits for the disk.

The second transaction only writes a message to the write-ahead log, and waits until the log is on disk up to this
message, which includes the first transaction. Transactions that have seen its changes come later in the log, so after a
crash none of them exists without it.
"""


class UtcDateTime(TypeDecorator[datetime]):
    """A time in UTC. SQLite stores no time zone, so it is added when a value is read."""

    impl = sa.DateTime(timezone=True)
    cache_ok = True

    def process_bind_param(self, value: datetime | None, dialect: Dialect) -> datetime | None:
        return None if value is None else value.astimezone(UTC)

    def process_result_value(self, value: datetime | None, dialect: Dialect) -> datetime | None:
        if value is None:
            return None
        return value.replace(tzinfo=UTC) if value.tzinfo is None else value.astimezone(UTC)


Json = sa.JSON(none_as_null=True).with_variant(JSONB(none_as_null=True), "postgresql")
BigInteger = sa.BigInteger().with_variant(sa.Integer, "sqlite")
"""SQLite generates primary keys only for columns declared as INTEGER."""
ByteOrder = sa.String().with_variant(sa.String(collation="C"), "postgresql")
"""Text ordered by its bytes: the same order on every server, and a cheaper index."""


def enum_column(kind: type[StrEnum]) -> sa.Enum:
    """The column type for an enum, stored as text."""
    return sa.Enum(kind, native_enum=False, length=20, values_callable=lambda members: [m.value for m in members])


class Base(DeclarativeBase):
    """Base of all tables. All constraints are named, so that migrations can refer to them."""

    metadata = sa.MetaData(
        naming_convention={
            "ix": "ix_%(table_name)s_%(column_0_N_name)s",
            "uq": "uq_%(table_name)s_%(column_0_N_name)s",
            "ck": "ck_%(table_name)s_%(constraint_name)s",
            "fk": "fk_%(table_name)s_%(column_0_name)s",
            "pk": "pk_%(table_name)s",
        }
    )
    type_annotation_map = {datetime: UtcDateTime, dict[str, Any]: Json, list[str]: Json}


def utc_text(moment: datetime) -> str:
    """Format a time as in all responses.

    >>> utc_text(datetime(2026, 3, 1, 9, tzinfo=UTC))
    '2026-03-01T09:00:00Z'
    """
    return moment.astimezone(UTC).isoformat().replace("+00:00", "Z")


def rows_changed(session: Session, statement: sa.Update | sa.Delete) -> int:
    """Execute a statement; returns how many rows it changed or deleted."""
    result: sa.CursorResult[Any] = session.execute(statement)  # type: ignore[assignment]
    return int(result.rowcount)


def measure_size(session: Session) -> int:
    """Size of the database in bytes, with its indexes and free pages."""
    if session.get_bind().dialect.name == "sqlite":
        pages, size = (session.scalar(sa.text(f"PRAGMA {name}")) for name in ("page_count", "page_size"))
        return int(pages) * int(size)
    return int(session.scalar(sa.text("SELECT pg_database_size(current_database())")) or 0)


def dialect_insert(session: Session, table: type[Base]) -> sqlite.Insert | postgresql.Insert:
    """An INSERT of the session's dialect, which supports ON CONFLICT."""
    if session.get_bind().dialect.name == "sqlite":
        return sqlite.insert(table)
    return postgresql.insert(table)


def release_locks_early(session: Session) -> None:
    """Have the session's transaction release its locks before it is on disk; the commit still waits for the disk."""
    session.info["release_locks_early"] = True


def run_before_commit(session: Session, act: Callable[[Session], object]) -> None:
    """Have a function called once at the end of the session's transaction, before the commit."""
    waiting = session.info.setdefault("before_commit", [])
    if act not in waiting:
        waiting.append(act)


class Database:
    """An engine with sessions for reading and for writing."""

    def __init__(self, settings: Settings) -> None:
        url = parse_url(settings.database)
        self._info = {"settings": settings}
        """What every session carries: some steps in the middle of a transaction depend on settings."""
        self.sqlite = url.get_backend_name() == "sqlite"
        if not self.sqlite and not url.password:
            url = url.set(password=settings.database_password.get_secret_value() or None)
        self._timeout = timeout = settings.database_timeout
        if self.sqlite:
            arguments: dict[str, Any] = {"timeout": timeout}
        else:
            # both sides notice a lost connection within a minute. Without keepalives TCP takes two hours; without
            # tcp_user_timeout it takes a quarter of an hour while a response is pending, when no keepalives are sent
            keepalive = {"keepalives_idle": 30, "keepalives_interval": 10, "keepalives_count": 3}
            unanswered = {"tcp_user_timeout": 60_000}
            # without statistics, PostgreSQL overestimates costs and wastes time on compiling statements
            session: dict[str, Any] = {"lock_timeout": int(timeout * 1000), "timezone": "UTC", "jit": "off"}
            session |= {f"tcp_{name}": value for name, value in keepalive.items()} | unanswered
            options = " ".join(f"-c {name}={value}" for name, value in session.items())
            arguments = {"options": options, "connect_timeout": max(2, int(timeout)), **keepalive, **unanswered}
        self.engine = sa.create_engine(
            url,
            connect_args=arguments,
            pool_size=settings.pool_size,
            max_overflow=settings.pool_overflow,
            pool_timeout=timeout,
            pool_use_lifo=True,  # reuse few connections, which have prepared statements, rather than all in turn
            hide_parameters=True,  # parameters may be personal data, and errors end up in logs
        )
        self._writing = self.engine
        # SQLite has one writer at a time: waiting here for other threads is fairer than its timed retries.
        # On PostgreSQL, writers that wait for a model's lock must leave connections for other requests.
        self._write_slots = threading.Semaphore(1 if self.sqlite else settings.pool_size)
        if self.sqlite:
            event.listen(self.engine, "connect", prepare_sqlite)
            event.listen(self.engine, "begin", begin_sqlite)
            self._writing = self.engine.execution_options(writes=True)
        else:
            event.listen(self.engine, "checkin", note_idle_since)
            event.listen(self.engine, "checkout", ping_if_idle)
            event.listen(self.engine, "handle_error", drop_standby_connections, retval=True)

    @contextmanager
    def read(self) -> Iterator[Session]:
        """A session for reading committed data."""
        with translate_database_errors(), self._open(self.engine, autoflush=False) as session:
            yield session

    @contextmanager
    def write(self) -> Iterator[Session]:
        """A session in one transaction, which is committed at the end and rolled back by any exception."""
        with translate_database_errors(), self._write_slot(), self._open(self._writing) as session, session.begin():
            yield session
            for act in session.info.pop("before_commit", []):
                act(session)
            if session.info.get("release_locks_early") and not self.sqlite:
                session.flush()
                session.connection().exec_driver_sql(EARLY_COMMIT)

    def _open(self, engine: sa.Engine, **options: Any) -> Session:
        return Session(engine, info=dict(self._info), **options)

    @contextmanager
    def connect(self) -> Iterator[sa.Connection]:
        """A connection for writes whose transactions the caller manages; uncommitted changes are rolled back."""
        with translate_database_errors(), self._write_slot(), self._writing.connect() as connection:
            yield connection

    @contextmanager
    def _write_slot(self) -> Iterator[None]:
        if not self._write_slots.acquire(timeout=self._timeout):
            raise Unavailable("database_busy", "Timed out waiting for a database lock; try again.")
        try:
            yield
        finally:
            self._write_slots.release()

    def ping(self) -> None:
        """Raise Unavailable if the database does not respond."""
        with self.read() as session:
            session.execute(sa.select(1))

    def close(self) -> None:
        self.engine.dispose()


def parse_url(text: str) -> sa.URL:
    """Parse the URL of a supported database; raises Invalid with a message for operators, without the password."""
    try:
        url = sa.make_url(text)
        url.get_dialect()
    except (sa.exc.ArgumentError, sa.exc.NoSuchModuleError, ValueError):
        url = None
    if url is None or url.drivername not in ("sqlite", "postgresql+psycopg"):
        message = "AMEND_DATABASE_URL: expected sqlite:///PATH or postgresql+psycopg://USER:PASSWORD@HOST:PORT/NAME."
        raise Invalid("settings_invalid", message)
    if "@" in f"{url.host}{url.database}" and url.drivername != "sqlite":
        # a part of the password would be taken for the host, and shown as such
        message = "AMEND_DATABASE_URL: write an @ in the password as %40, or set AMEND_DATABASE_PASSWORD."
        raise Invalid("settings_invalid", message)
    return url


def prepare_sqlite(connection: Any, _record: Any) -> None:
    # begin_sqlite begins transactions: the driver by itself would begin them late and without a lock
    connection.isolation_level = None
    for pragma in (
        "page_size=16384",  # for a new database: rows of 300 bytes are written 1.5 times as fast as with pages of 4096
        "journal_mode=WAL",
        "synchronous=FULL",  # a write that was confirmed survives a power cut
        "foreign_keys=ON",
        "secure_delete=ON",  # deleted rows are overwritten
        "cache_size=-65536",
    ):
        connection.execute(f"PRAGMA {pragma}")


def note_idle_since(_connection: Any, record: Any) -> None:
    record.info["idle_since"] = time.monotonic()


def ping_if_idle(connection: Any, record: Any, _proxy: Any) -> None:
    """Check that a connection that was idle still works; otherwise the pool replaces it."""
    if time.monotonic() - record.info.get("idle_since", time.monotonic()) > PING_AFTER_SECONDS:
        try:
            connection.execute("SELECT 1")
            connection.rollback()
        except Exception as error:
            raise sa.exc.DisconnectionError from error


def begin_sqlite(connection: sa.Connection) -> None:
    # IMMEDIATE: a transaction that reads first and writes later may be unable to get the lock
    writes = connection.get_execution_options().get("writes")
    connection.exec_driver_sql("BEGIN IMMEDIATE" if writes else "BEGIN")


def drop_standby_connections(context: sa.engine.ExceptionContext) -> sa.exc.OperationalError | None:
    """Drop all connections to a server that has become read-only: after a failover, another server is the primary."""
    error = context.original_exception
    if not is_read_only_error(error):
        return None
    context.is_disconnect = True
    return sa.exc.OperationalError(context.statement, None, error)


def is_read_only_error(error: BaseException | None) -> bool:
    """Whether PostgreSQL refused a write because the server is read-only, as after a failover."""
    return getattr(error, "sqlstate", None) == READ_ONLY_SQLSTATE


@contextmanager
def translate_database_errors() -> Iterator[None]:
    """Translate the errors of a database that is busy or down to Unavailable."""
    try:
        yield
    except sa.exc.TimeoutError as error:
        raise Unavailable("database_busy", "All database connections are busy; try again.") from error
    except sa.exc.OperationalError as error:
        raise Unavailable("database_unavailable", "The database is busy or down; try again.") from error
