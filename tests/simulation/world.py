"""What the product talks to, in memory: files, broker, MLflow and a webhook receiver, all of which may fail."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from random import Random
from types import SimpleNamespace
from typing import Any

from sqlalchemy.orm import Session

from core.database import Database
from core.errors import Unavailable
from core.jobs.messages import RUN_TASK
from core.settings import Settings
from core.versions.store import PARTIAL, Store
from tests.simulation.baton import Baton

OUTAGE_FAILURE_RATE = 0.5
"""During an outage, this share of the requests fails."""


class World:
    """Everything outside of the simulated processes."""

    def __init__(self, baton: Baton, seed: int | str) -> None:
        self.baton = baton
        self.random = Random(f"world {seed}")
        self.outages: dict[str, float] = {}
        """By service: until when it is out of order."""
        self.files = Files(self)
        self.store = MemoryStore(self.files)
        self.broker = Broker(self)
        self.mlflow = Mlflow()
        self.received: list[str] = []
        """Ids of the webhook messages that the receiver got."""
        self.observe: Callable[[], None] = lambda: None
        self.is_over = False

    def request(self, service: str, name: str) -> None:
        """A request to a service: a point, at which it may also fail."""
        self.baton.point(name)
        if self.is_failing(service):
            raise ConnectionError(service)

    def is_failing(self, service: str) -> bool:
        out = self.baton.elapsed < self.outages.get(service, 0.0) and self.baton.current is not None
        return out and self.random.random() < OUTAGE_FAILURE_RATE

    def post(self, _url: str, headers: dict[str, str], body: bytes, _private: bool) -> int:
        """The receiver of webhooks."""
        self.request("receiver", "webhook request")
        self.received.append(headers["webhook-id"])
        self.request("receiver", "webhook response")
        return 200


class SimulatedDatabase(Database):
    """The real SQLite database, with points around its transactions. One for all histories: an engine compiles
    statements once."""

    world: World

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
        self.world.observe()
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


class Files:
    """A disk. Changes are durable once their folder is synced; a crash of the machine undoes the last of the others."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.live: dict[str, bytes] = {}
        self.unsynced: list[tuple[str, bytes | None]] = []
        """Paths that were changed, in order, with their contents before."""

    def set(self, path: str, data: bytes | None) -> None:
        self.unsynced.append((path, self.live.get(path)))
        if data is None:
            self.live.pop(path, None)
        else:
            self.live[path] = data

    def sync(self, folder: Any) -> None:
        self.world.baton.point("file sync", yields=False)
        self.unsynced = [change for change in self.unsynced if not change[0].startswith(f"{folder}/")]

    def crash(self) -> None:
        """Lose the last changes that were not synced: any prefix of them is kept."""
        kept = self.world.random.randint(0, len(self.unsynced))
        for path, before in reversed(self.unsynced[kept:]):
            if before is None:
                self.live.pop(path, None)
            else:
                self.live[path] = before
        self.unsynced = []

    def write_whole(self, path: Path, data: bytes) -> None:
        """Stands in for `core.versions.store.write_whole`, which syncs the file and its folder."""
        self.world.request("store", "file write")
        self.set(str(path), data)
        self.world.baton.point("file renamed")
        self.sync(path.parent)

    def makedirs(self, path: str, exist_ok: bool) -> None: ...

    def ls(self, folder: str, detail: bool) -> list[str]:
        self.world.request("store", "file list")
        found = [path for path in self.live if path.rpartition("/")[0] == folder]
        if not found:
            raise FileNotFoundError(folder)
        return found

    def cat_file(self, path: str) -> bytes:
        self.world.request("store", "file read")
        if path not in self.live:
            raise FileNotFoundError(path)
        return self.live[path]

    def exists(self, path: str) -> bool:
        return any(name == path or name.startswith(f"{path}/") for name in self.live)

    def rm(self, path: str, recursive: bool) -> None:
        self.world.request("store", "file delete")
        for name in [name for name in self.live if name == path or name.startswith(f"{path}/")]:
            self.set(name, None)


class MemoryStore(Store):
    """The real store on a disk in memory."""

    def __init__(self, files: Files) -> None:
        self.files, self.root, self.local = files, "/store", True

    def contents(self, folder: str = "models") -> dict[str, bytes]:
        """All files of a folder, by their names in the store."""
        prefix = f"{self.root}/"
        found = {path.removeprefix(prefix): data for path, data in self.files.live.items()}
        return {name: data for name, data in found.items() if name.startswith(folder) and not name.endswith(PARTIAL)}


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
        self.weights: dict[tuple[int, int, str | None], bytes] = {}
        """By model, version and job."""
        self.champions: dict[int, int | None] = {}


def make_settings(folder: Path) -> Settings:
    return Settings(
        home=folder,
        secret_key="simulation",
        mlflow_url="http://mlflow.test",
        private_webhooks=True,
        cache_seconds=0.0,
        lease_seconds=10.0,
        retry_seconds=2.0,
        resend_seconds=20.0,
        tick_seconds=20.0,
        max_attempts=3,
        pool_size=4,
    )


def tokens_in(data: bytes) -> set[int]:
    """The tokens of the examples that a file's version was trained on."""
    return set(json.loads(data)["tokens"].values())


def namespace(**names: Any) -> SimpleNamespace:
    return SimpleNamespace(**names)
