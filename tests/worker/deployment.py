"""A whole Amend as tests of the worker use it: data in, jobs waited for, versions compared with scikit-learn's fits."""

from __future__ import annotations

import json
import signal
import subprocess
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.linear_model import LogisticRegression
from sqlalchemy import inspect, select, text

from core.errors import Unavailable
from core.kprior import State
from core.ledger import passes
from core.ledger.digest import EMPTY, update_digest
from core.ledger.spec_history import spec_at
from core.models import catalog
from core.tables.jobs import Job
from core.tables.ledger import Change
from core.tables.versions import Version
from tests.stack import START_SECONDS, Stack

Numbers = NDArray[Any]
DIM = 4
DELTA = 1.0
ENDED = ("succeeded", "failed", "cancelled")


class Deployment(Stack):
    """One Amend. Schedules and leases are quick, so that tests are."""

    def __init__(self, folder: Path, database_url: str = "", **environment: str) -> None:
        quick = {
            "AMEND_TICK_SECONDS": "0.6",
            "AMEND_LEASE_SECONDS": "3",
            "AMEND_RETRY_SECONDS": "0.2",
            "AMEND_SHUTDOWN_TIMEOUT": "1",
            "AMEND_PRIVATE_WEBHOOKS": "true",
            "AMEND_CONTROLLER": "Example Ltd; 1 Main Street; Exampletown",
            "AMEND_CONTROLLER_CONTACT": "our data protection officer; privacy@example.com",
            "AMEND_PRIVACY_NOTICE_URL": "https://example.com/privacy",
        }
        super().__init__(folder, database_url, **{**quick, **environment})

    def new_model(self, **spec: Any) -> str:
        """A model that is changed only when a test asks for it; its policy may be given in part."""
        quiet = {"adapt": {"after_changes": None, "every": None}, "retrain": {"every": None}}
        policy = {**quiet, "memory": {"fraction": 0.1}, **spec.pop("policy", {})}
        given = {"input": {"kind": "vector", "dim": DIM}, "regularizer": {"kind": "l2", "delta": DELTA}}
        return self.model(**{**given, **spec}, policy=policy)

    def add_examples(self, name: str, x: Numbers, y: Numbers, first: int = 0, **more: Any) -> None:
        """Examples with the ids e<first>, e<first + 1>, ..."""
        rows = [
            {"id": f"e{first + i}", "x": a.tolist(), "y": b.item(), **more}
            for i, (a, b) in enumerate(zip(x, y, strict=True))
        ]
        self.post(f"/v1/models/{name}/examples", {"examples": rows})

    def remove(self, name: str, numbers: Iterable[int]) -> Any:
        """Remove the examples e<number>; the answer."""
        return self.post(f"/v1/models/{name}/removals", {"ids": [f"e{i}" for i in numbers]})

    def wait_for_ticks(self, count: int = 3) -> None:
        """Wait until the scheduler has looked after everything so many times more."""
        file, seen = self.folder / "home" / "scheduler.alive", set()

        def enough() -> bool:
            seen.add(file.stat().st_mtime_ns)
            return len(seen) > count + 1  # one tick may have begun before

        self.wait_until(enough)

    def let_pass(self, name: str, time: timedelta) -> None:
        """Make everything recorded about a model older, as if the time had passed. No job of it may be running."""
        with self.database.write() as session:
            model = catalog.find(session, name, None)
            rows: list[Any] = [model]
            for table in (Change, Job, Version):
                rows += session.scalars(select(table).where(table.model_id == model.id).order_by(table.created_at))
            for row in rows:
                for column in inspect(type(row)).columns:
                    if isinstance(moment := getattr(row, column.key), datetime):
                        setattr(row, column.key, moment - time)
                session.flush()  # the oldest first: two jobs never have the same due time

    def ended(self, job_id: str, seconds: float = START_SECONDS) -> dict[str, Any]:
        """A job, once it has ended."""
        found: dict[str, Any] = {}

        def over() -> bool:
            found.update(self.get(f"/v1/jobs/{job_id}?wait=5"))
            return found["state"] in ENDED

        self.wait_until(over, seconds)
        return found

    def adapted(self, name: str) -> dict[str, Any]:
        """Adapt a model to its head; the job."""
        return self.ended(self.post(f"/v1/models/{name}/adaptations")["id"])

    def settled(self, name: str, seconds: float = START_SECONDS) -> list[dict[str, Any]]:
        """All jobs of a model, the newest first, once none waits or runs; without those that delete removed rows."""
        jobs: list[dict[str, Any]] = []

        def over() -> bool:
            jobs[:] = self.get(f"/v1/jobs?model={name}")["items"]
            return all(job["state"] in ENDED for job in jobs)

        self.wait_until(over, seconds)
        return [job for job in jobs if job["kind"] != "erase"]

    def running(self, job_id: str) -> dict[str, Any]:
        """A job, once it runs and tells how far it is."""
        found: dict[str, Any] = {}

        def started() -> bool:
            found.update(self.get(f"/v1/jobs/{job_id}"))
            assert found["state"] not in ENDED, found
            return bool(found["progress"] > 0)

        self.wait_until(started)
        return found

    def champion(self, name: str) -> dict[str, Any]:
        """The version that answers."""
        version: dict[str, Any] = self.version(name, self.get(f"/v1/models/{name}")["champion"])
        return version

    def version(self, name: str, number: int) -> Any:
        return self.get(f"/v1/models/{name}/versions/{number}")

    def trials(self, name: str, number: int) -> list[dict[str, Any]]:
        """What was tried to make a version of a network."""
        with self.database.read() as session:
            version = session.get_one(Version, (catalog.find(session, name, None).id, number))
            return list((version.evaluation or {}).get("trials", []))

    def state(self, name: str, version: int | None = None) -> State:
        """The state of a version, or of the champion."""
        number = version or self.get(f"/v1/models/{name}")["champion"]
        with self.client() as client:
            data = client.get(f"/v1/models/{name}/versions/{number}/weights").raise_for_status().content
        return State.from_bytes(data)

    def weights(self, name: str, version: int | None = None) -> Numbers:
        """The weights of a version, or of the champion."""
        weights: Numbers = self.state(name, version).w.numpy()
        return weights

    def datasets_agree(self, name: str) -> bool:
        """Whether the champion says that it stands for what the ledger holds at its position.

        Of older versions the ledger cannot tell: examples that are removed are deleted by and by.
        """
        with self.database.read() as session:
            model = catalog.find(session, name, None)
            champion = session.get_one(Version, (model.id, model.champion))
            spec = spec_at(session, model.id, model.spec, champion.position)
        place = self.database, model.id, spec, champion.position
        held = passes.read_in_force(*place, removals_position=champion.removals_position)
        return champion.dataset_digest == update_digest(self.settings.secret, EMPTY, held)

    @property
    def workers(self) -> list[subprocess.Popen[bytes]]:
        return [process for process in self.others if process.args[-1] == "worker"]  # type: ignore[index]

    @contextmanager
    def worker_held(self) -> Iterator[None]:
        """Jobs wait meanwhile: workers are there but begin nothing."""
        self.wait_until(self.stop_workers)
        try:
            yield
        finally:
            for process in self.workers:
                process.send_signal(signal.SIGCONT)

    def stop_workers(self) -> bool:
        """Stop the workers unless one of them is in a transaction, which would keep others from writing."""
        for process in self.workers:
            process.send_signal(signal.SIGSTOP)
        if self.is_writable():
            return True
        for process in self.workers:
            process.send_signal(signal.SIGCONT)
        return False

    def is_writable(self) -> bool:
        """Whether no process is in the middle of a transaction."""
        idle = text(
            "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND state LIKE 'idle in%'"
        )
        try:
            with self.database.write() as session:
                return bool(session.scalar(text("SELECT 1") if self.database.sqlite else idle) == self.database.sqlite)
        except Unavailable:
            return False

    def log_lines(self, module: str) -> list[dict[str, Any]]:
        """What a part has logged, as far as it is JSON."""
        lines = (self.folder / f"{module}.log").read_text().splitlines()
        return [json.loads(line) for line in lines if line.startswith("{")]


def problem(n: int, seed: int = 0, dim: int = DIM) -> tuple[Numbers, Numbers]:
    """Inputs and yes/no labels of a noisy linear rule."""
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(n, dim)).astype(np.float32)
    y = (rng.random(n) < 1 / (1 + np.exp(-2 * x[:, 0] + x[:, -1]))).astype(int)
    return x, y


def fitted(x: Numbers, y: Numbers, delta: float = DELTA) -> Numbers:
    """What scikit-learn says the weights of these examples are; the bias comes last, as in ours."""
    model = LogisticRegression(C=1 / delta, tol=1e-10, max_iter=10_000).fit(x.astype(np.float64), y)
    return np.concatenate([model.coef_[0], model.intercept_])


@contextmanager
def running_deployment(folder: Path, database_url: str = "", **environment: str) -> Iterator[Deployment]:
    """A service with its worker, its scheduler and, unless one is given, its broker; the database is migrated first."""
    deployment = Deployment(folder, database_url, **environment)
    try:
        if "AMEND_BROKER_URL" not in environment:
            deployment.add("worker.broker")
        deployment.start()
        deployment.add("worker")
        deployment.add("worker.scheduler")
        deployment.wait_until(deployment.ready)
        yield deployment
    finally:
        deployment.stop()
        deployment.database.close()
