"""A whole Amend whose parts are killed and started again: workers, scheduler, broker, database."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
from sqlalchemy import select

from core.tables.jobs import Job, Worker
from core.tables.versions import Version, VersionState
from core.versions import store_identity
from core.versions.store import folder_of
from tests import servers
from tests.servers import Program
from tests.stack import Stack
from tests.worker.deployment import Deployment, problem

Process = subprocess.Popen[bytes]


class Fleet(Deployment):
    """On SQLite with the embedded broker, or on a PostgreSQL and a Redis of its own; workers run one job each."""

    def __init__(self, folder: Path, backend: str, **environment: str) -> None:
        self.postgres = servers.start_postgres(durable=False) if backend == "postgresql" else None
        self.redis = servers.start_redis() if backend == "postgresql" else None
        url = self.postgres.create_database("fleet") if self.postgres else ""
        broker = {"AMEND_BROKER_URL": self.redis.url} if self.redis else {}
        quick = {"AMEND_RESEND_SECONDS": "2", "AMEND_SHUTDOWN_TIMEOUT": "0"}
        super().__init__(folder, url, **{**quick, "AMEND_WORKER_PROCESSES": "1", **broker, **environment})
        self.embedded: Process | None = None

    def start(self) -> Stack:
        super().start()
        if self.redis is None:
            self.embedded = self.add("worker.broker")
        return self

    def stop(self, how: signal.Signals = signal.SIGTERM) -> None:
        for process in self.others:
            if process.poll() is None:
                kill(process)
        super().stop(how)
        for server in (self.postgres, self.redis):
            if server is not None:
                server.stop()

    def start_service(self) -> None:
        """Start the service again, once it was killed; wait until it answers."""
        self.process = self.spawn("service")
        self.wait_until(self.answers)

    def answers(self) -> bool:
        try:
            return httpx.get(f"{self.url}/healthz", verify=False).status_code == 200
        except httpx.HTTPError:
            return False

    def halt(self) -> None:
        """End all of Amend, as `amend up` does when it is told to stop; it can be started again."""
        Stack.stop(self)
        self.others.clear()
        self.database.close()

    def kill_broker(self) -> None:
        """kill -9. Redis loses all it has."""
        if self.redis is None:
            assert self.embedded is not None
            kill(self.embedded)
        else:
            assert self.redis.program is not None
            kill_server(self.redis.program, signal.SIGKILL)

    def start_broker(self) -> None:
        if self.redis is None:
            self.embedded = self.add("worker.broker")
        else:
            assert self.redis.program is not None
            url = self.redis.url
            start_server(self.redis.program, lambda: servers.pings(url))

    def restart_database(self) -> None:
        """End PostgreSQL and all connections to it, and start it again."""
        assert self.postgres is not None
        assert self.postgres.program is not None
        url = self.postgres.url
        self.database.close()
        kill_server(self.postgres.program, signal.SIGINT)
        start_server(self.postgres.program, lambda: servers.connects(url))
        self.wait_until(self.ready)  # the first request may find a connection that is gone

    def workers_up(self, count: int) -> list[Process]:
        """Exactly so many workers that are ready. Those that an earlier test has left over are killed."""
        there = [process for process in self.workers if process.poll() is None]
        for surplus in there[count:]:
            kill(surplus)
        there = there[:count] + [self.add("worker") for _ in range(count - len(there))]
        self.wait_until(lambda: all(map(self.alive, there)))
        return there

    def alive(self, worker: Process) -> bool:
        """Whether a worker has told the database that it is there."""
        with self.database.read() as session:
            return any(f"{worker.pid}@" in name for name in session.scalars(select(Worker.name)))

    def job(self, job_id: str) -> Job:
        with self.database.read() as session:
            return session.get_one(Job, job_id)

    def runner(self, job_id: str) -> int:
        """The process that runs a job, once there is one."""
        self.wait_until(lambda: self.job(job_id).lease_owner is not None, 60)
        return int((self.job(job_id).lease_owner or "").split(":")[1])

    def network(self, epochs: int, **more: Any) -> str:
        """A model whose training takes about so many milliseconds."""
        training = {"max_epochs": epochs, "patience": 100_000}
        return self.new_model(architecture={"kind": "mlp", "hidden": [20]}, training=training, **more)

    def trains(self, name: str, n: int = 200) -> str:
        """Give a model examples and have it trained; the job."""
        x, y = problem(n)
        self.add_examples(name, x, y, split="train")
        return str(self.post(f"/v1/models/{name}/adaptations")["id"])

    def unreferenced(self, model_id: int | None = None) -> set[str]:
        """Files in the store, or in the folder of a model, that no version refers to, apart from those of the register
        and the journal.
        """
        root = Path(self.settings.artifacts)
        under = root if model_id is None else root / folder_of(model_id)
        files = {str(path.relative_to(root)) for path in under.rglob("*") if path.is_file()}
        with self.database.read() as session:
            left = files - set(session.scalars(select(Version.file))) - {store_identity.FILE}
        return {file for file in left if not file.startswith(("register/", "journal/"))}

    def unreferenced_versions(self) -> set[str]:
        """Files of weights that no version refers to, or that belong to a purged one."""
        with self.database.read() as session:
            purged = set(session.scalars(select(Version.file).where(Version.state == VersionState.PURGED)))
        there = {file for file in purged if (Path(self.settings.artifacts) / file).exists()}
        return there | {file for file in self.unreferenced() if file.startswith("models/")}


def children(process: int) -> list[int]:
    """Of a process; none if it is gone."""
    try:
        return [int(child) for child in Path(f"/proc/{process}/task/{process}/children").read_text().split()]
    except FileNotFoundError:
        return []


def kill(process: Process) -> None:
    """kill -9, all processes as good as at once: the first is stopped, so that it cannot start others."""
    process.send_signal(signal.SIGSTOP)
    for each in (*children(process.pid), process.pid):
        os.kill(each, signal.SIGKILL)
    process.wait(30)


def gone(process: int) -> bool:
    """Whether a process has ended. One that nobody has asked about yet has as well."""
    try:
        return Path(f"/proc/{process}/stat").read_text().rsplit(")", 1)[1].split()[0] == "Z"
    except FileNotFoundError:
        return True


def kill_server(program: Program, how: signal.Signals) -> None:
    assert program.process is not None
    program.process.send_signal(how)
    program.process.wait(30)


def start_server(program: Program, answers: Callable[[], bool]) -> None:
    """Start a server again as it was."""
    assert program.process is not None
    program.start(list(program.process.args), answers)  # type: ignore[arg-type]
