"""The service as its users have it: migrated, started as a process of its own, on a real database."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Callable
from functools import cached_property
from pathlib import Path
from typing import Any

import httpx

from core.database import Database
from core.kprior import MemoryPolicy, train
from core.ledger import passes
from core.ledger.digest import EMPTY, update_digest
from core.ledger.spec_history import spec_at
from core.models import catalog
from core.promotion.decision import promote
from core.settings import Settings
from core.tables.versions import VersionKind
from core.versions import drafts
from core.versions.store import Store, folder_of
from tests.forkserver import fork
from tests.servers import free_port

START_SECONDS = 180
"""How long a test waits: longer than a busy machine needs. A test that passes does not wait longer because of it."""


class Stack:
    """One service with its database. Tests share it, and keep out of each other's way by models of their own."""

    def __init__(self, folder: Path, database_url: str = "", **environment: str) -> None:
        self.folder = folder
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self.log = folder / "service.log"
        self.environment = {
            "AMEND_HOME": str(folder / "home"),
            "AMEND_PORT": str(self.port),
            "AMEND_DATABASE_URL": database_url,
            "OMP_NUM_THREADS": "1",
            **environment,
        }
        self.process: subprocess.Popen[bytes] | None = None
        self.others: list[subprocess.Popen[bytes]] = []

    def start(self) -> Stack:
        """Migrate and start, and wait until the service answers."""
        if self.spawn("migrations").wait() != 0:
            raise RuntimeError(f"no migration:\n{(self.folder / 'migrations.log').read_text()}")
        self.process = self.spawn("service")
        end = time.monotonic() + START_SECONDS
        while True:
            try:
                httpx.get(f"{self.url}/healthz", verify=False).raise_for_status()
                return self
            except httpx.HTTPError:
                if self.process.poll() is not None or time.monotonic() > end:
                    raise RuntimeError(f"the service did not start:\n{self.log.read_text()}") from None
                time.sleep(0.05)

    def spawn(self, module: str, **environment: str) -> subprocess.Popen[bytes]:
        """Start a part as a process of its own; its log is named after it."""
        return fork(self.command(module), {**self.complete(), **environment}, self.folder / f"{module}.log")

    def add(self, module: str, **environment: str) -> subprocess.Popen[bytes]:
        """Start another part (worker, worker.scheduler, worker.broker) that ends with the stack."""
        self.others.append(self.spawn(module, **environment))
        return self.others[-1]

    def wait_until(self, true: Callable[[], bool], seconds: float = START_SECONDS) -> None:
        """Look again and again; an AssertionError with the ends of all logs when time is up."""
        end = time.monotonic() + seconds
        while not true():
            if time.monotonic() > end:
                ends = "\n".join(f"{log.name}:\n{log.read_text()[-3000:]}" for log in self.folder.glob("*.log"))
                raise AssertionError(f"not in {seconds} s\n{ends}")
            time.sleep(0.1)

    def ready(self) -> bool:
        """Whether everything that jobs need is there."""
        return self.connection.get("/readyz").status_code == 200

    def stop(self, how: signal.Signals = signal.SIGTERM) -> None:
        for process in [*reversed(self.others), self.process]:
            if process is not None and process.poll() is None:
                process.send_signal(how)
                process.wait(30)

    def command(self, module: str) -> list[str]:
        return [sys.executable, "-P", "-m", module]

    def complete(self) -> dict[str, str]:
        """The environment of a process: nobody's own settings, and ours."""
        return {k: v for k, v in os.environ.items() if not k.startswith("AMEND_")} | self.environment

    @cached_property
    def settings(self) -> Settings:
        given = {name.removeprefix("AMEND_").lower(): v for name, v in self.environment.items() if "AMEND_" in name}
        return Settings(**given)

    @cached_property
    def database(self) -> Database:
        return Database(self.settings)

    @property
    def admin_key(self) -> str:
        return (self.folder / "home" / "admin.key").read_text().strip()

    def client(self, key: str | None = None, **options: Any) -> httpx.Client:
        """A client that sends a key: the admin's, unless another is given."""
        headers = {"Authorization": f"Bearer {key or self.admin_key}"}
        # no TLS here: preparing for it costs more than most tests
        return httpx.Client(base_url=self.url, headers=headers, timeout=60, verify=False, **options)

    @cached_property
    def connection(self) -> httpx.Client:
        """For single requests, one after the other."""
        return httpx.Client(base_url=self.url, timeout=60, verify=False)

    def request(self, method: str, path: str, **options: Any) -> Any:
        """What the service answers to the admin."""
        headers = {"Authorization": f"Bearer {self.admin_key}", **options.pop("headers", {})}
        return self.connection.request(method, path, headers=headers, **options).raise_for_status().json()

    def post(self, path: str, body: Any = None, **options: Any) -> Any:
        return self.request("POST", path, json=body, **options)

    def get(self, path: str) -> Any:
        return self.request("GET", path)

    def key(self, *scopes: str, models: list[str] | None = None) -> str:
        """A new key with these scopes."""
        return str(self.post("/v1/keys", {"name": "test", "scopes": scopes, "models": models})["key"])

    def model(self, **spec: Any) -> str:
        """A new model of two numbers and a yes/no target, unless told otherwise; its name."""
        name = f"m-{uuid.uuid4().hex[:12]}"
        body = {"name": name, "input": {"kind": "vector", "dim": 2}, "target": {"kind": "binary"}, **spec}
        self.post("/v1/models", body)
        return name

    def train(self, name: str) -> int:
        """Train a model on its ledger and make the version champion, as a worker would; its number."""
        with self.database.write() as session:
            model = catalog.find(session, name, None, lock=True)
            spec = spec_at(session, model.id, model.spec, model.head)
            model_id, head = model.id, model.head
        data = passes.read_in_force(self.database, model_id, spec, head)
        result = train(spec, data, policy=MemoryPolicy(fraction=0.5))
        with self.database.write() as session:
            model = catalog.find(session, name, None, lock=True)
            dataset = update_digest(self.settings.secret, EMPTY, data)
            given = (VersionKind.TRAINED, "retrain", head, dataset, result.cost, {"loss": 0.5})
            stored = Store(self.settings.artifacts).put(folder_of(model.id), result.state.to_bytes())
            version = drafts.record(session, model, drafts.VersionDraft(result.state, *given), stored)
            promote(session, model, version, by="policy")
            return version.number
