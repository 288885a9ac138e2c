"""What the product talks to, in memory: files, broker, MLflow and a webhook receiver, all of which may fail."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from copy import copy
from functools import lru_cache
from pathlib import Path
from random import Random
from types import SimpleNamespace
from typing import Any

from sqlalchemy import event
from sqlalchemy.orm import Session

from core.database import Database, begin_sqlite
from core.errors import Unavailable
from core.jobs.messages import RUN_TASK
from core.settings import Settings
from tests.simulation.baton import Baton
from tests.simulation.disk import Files, MemoryStore

OUTAGE_FAILURE_RATE = 0.5
"""During an outage, this share of the requests fails."""


class World:
    """Everything outside of the simulated processes."""

    def __init__(self, baton: Baton, seed: int | str) -> None:
        self.baton = baton
        self.random = Random(f"world {seed}")
        self.outages: dict[str, float] = {}
        """By service: until when it is out of order."""
        self.files = Files(baton, self.random, self.request)
        self.store = MemoryStore(self.files)
        self.broker = Broker(self)
        self.mlflow = Mlflow()
        self.received: list[str] = []
        """Ids of the webhook messages that the receiver got."""
        self.drift_reports: dict[str, set[int]] = {}
        """Tokens of the examples that each drift report was computed from."""
        self.observe: Callable[[set[str]], None] = lambda tables: None
        """Called after each transaction, with the tables that it wrote."""
        self.is_over = False

    def request(self, service: str, name: str) -> None:
        """A request to a service: a point, at which it may also fail."""
        self.baton.point(name)
        if self.is_failing(service):
            raise ConnectionError(service)

    def is_failing(self, service: str) -> bool:
        out = self.baton.elapsed < self.outages.get(service, 0.0) and self.baton.current is not None
        return out and self.random.random() < OUTAGE_FAILURE_RATE

    def note_drift_report(self, report: Any, tokens: set[int]) -> None:
        key = json.dumps(report, sort_keys=True)
        self.drift_reports[key] = tokens & self.drift_reports.get(key, tokens)

    def post(self, _url: str, headers: dict[str, str], body: bytes, _private: bool) -> int:
        """The receiver of webhooks."""
        self.request("receiver", "webhook request")
        self.received.append(headers["webhook-id"])
        self.request("receiver", "webhook response")
        return 200


class SimulatedDatabase(Database):
    """The real SQLite database, with points around its transactions. One for all histories: an engine compiles
    statements once.
    """

    world: World

    def __init__(self, settings: Settings) -> None:
        super().__init__(settings)
        self.written: set[str] = set()
        """Tables that the present transaction wrote."""
        event.listen(self.engine, "connect", speed_up)
        event.remove(self.engine, "begin", begin_sqlite)
        self.engine._has_events = False
        self.engine.dialect = self.hooked(self.engine.dialect, "BEGIN")
        self._writing.dialect = self.hooked(self.engine.dialect, "BEGIN IMMEDIATE")

    def hooked(self, dialect: Any, begin: str) -> Any:
        """A dialect that takes note of statements, and begins transactions as `core.database.begin_sqlite` does.

        SQLAlchemy's events would do the same, but a listener makes every statement slower.
        """
        execute, many, found = type(dialect).do_execute, type(dialect).do_executemany, copy(dialect)

        def do_execute(cursor: Any, statement: str, parameters: Any, context: Any = None) -> None:
            self.note_statement(statement)
            execute(found, cursor, statement, parameters, context)

        def do_executemany(cursor: Any, statement: str, parameters: Any, context: Any = None) -> None:
            self.note_statement(statement)
            many(found, cursor, statement, parameters, context)

        found.do_execute, found.do_executemany = do_execute, do_executemany
        found.do_begin = lambda connection: connection.execute(begin)
        return found

    def note_statement(self, statement: str) -> None:
        if statement[0] in "IUD":
            words = statement.split(None, 3)
            self.written.add(words[1] if words[0] == "UPDATE" else words[2])

    @contextmanager
    def read(self) -> Iterator[Session]:
        self.begin("read")
        with self.world.baton.within_transaction(), super().read() as session:
            yield session

    @contextmanager
    def write(self) -> Iterator[Session]:
        baton = self.world.baton
        self.begin("write")
        with baton.within_transaction(), super().write() as session:
            yield session
            baton.point("commit", yields=False)
        self.end()

    @contextmanager
    def connect(self) -> Iterator[Any]:
        self.begin("write")
        with self.world.baton.within_transaction(), super().connect() as connection:
            yield connection
        self.end()

    def begin(self, name: str) -> None:
        self.world.baton.point(name)
        if self.world.is_failing("database"):
            raise Unavailable("database_unavailable", "The database is busy or down; try again.")

    def end(self) -> None:
        written, self.written = self.written, set()
        self.world.observe(written)
        self.world.baton.point("committed")
        if self.world.is_failing("database"):  # the transaction was committed, but the response was lost
            raise Unavailable("database_unavailable", "The database is busy or down; try again.")

    def replace(self, data: bytes) -> None:
        """Replace the whole database, as a restore does."""
        self.close()
        path = Path(str(self.engine.url.database))
        for suffix in ("-wal", "-shm"):
            path.with_name(path.name + suffix).unlink(missing_ok=True)
        path.write_bytes(data)

    def copy(self) -> bytes:
        """A consistent copy of the database."""
        connection = sqlite3.connect(str(self.engine.url.database))
        try:
            return connection.serialize()
        finally:
            connection.close()


def speed_up(connection: Any, _record: Any) -> None:
    """Nothing is lost without syncing: the machine of the simulation cannot crash, only the simulated one."""
    connection.execute("PRAGMA synchronous=OFF")
    connection.execute("PRAGMA secure_delete=OFF")


class Broker:
    """Queues of messages, as Celery would use them."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.messages: list[tuple[float, str, list[str]]] = []
        """When each message can be received, its task, and its arguments."""
        self.check: Callable[[str], None] = lambda job_id: None

    def send_task(self, name: str, args: list[str] | None = None, **_options: Any) -> None:
        if name == RUN_TASK:
            self.check((args or [""])[0])
        self.world.request("broker", "broker send")
        random, now = self.world.random, self.world.baton.elapsed
        faulty = now < self.world.outages.get("messages", 0.0)
        copies = random.choice((0, 1, 1, 2)) if faulty else 1
        for _ in range(copies):
            self.messages.append((now + (random.random() * 30 if faulty else 0.0), name, list(args or [])))
        self.world.baton.point("broker sent")

    def receive(self) -> tuple[str, list[str]] | None:
        """Any of the messages that have arrived."""
        now = self.world.baton.elapsed
        there = [message for message in self.messages if message[0] <= now]
        if not there:
            return None
        found = self.world.random.choice(there)
        self.messages.remove(found)
        return found[1], found[2]

    def give_back(self, name: str, args: list[str]) -> None:
        """A message whose worker died: it is delivered again later, or lost."""
        if self.world.random.random() < 0.5:
            self.messages.append((self.world.baton.elapsed + 20.0, name, args))

    def crash(self) -> None:
        """Lose some of the messages."""
        self.messages = [message for message in self.messages if self.world.random.random() < 0.5]

    def close(self) -> None: ...


class Mlflow:
    """The weights in MLflow, and the champion that it names."""

    def __init__(self) -> None:
        self.weights: dict[tuple[int, int, str], bytes] = {}
        """By model, version and run."""
        self.champions: dict[int, int | None] = {}


def make_settings(folder: Path) -> Settings:
    return Settings(
        home=folder,
        database_url=f"sqlite:///{folder / 'amend.db'}?cached_statements=1000",
        secret_key="simulation",
        mlflow_url="http://mlflow.test",
        private_webhooks=True,
        cache_seconds=0.0,
        lease_seconds=10.0,
        retry_seconds=2.0,
        resend_seconds=20.0,
        tick_seconds=40.0,
        max_attempts=3,
        pool_size=4,
    )


@lru_cache(1000)
def tokens_in(data: bytes) -> frozenset[int]:
    """The tokens of the examples that a file's version was trained on."""
    return frozenset(json.loads(data)["tokens"].values())


def namespace(**names: Any) -> SimpleNamespace:
    return SimpleNamespace(**names)
