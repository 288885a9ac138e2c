"""MLflow down, publishers killed, entries refused: nothing is lost, nothing is told twice, nobody is kept waiting."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from contextlib import suppress
from pathlib import Path

import pytest
import structlog
from mlflow import MlflowClient
from sqlalchemy import update

from core import mutex
from core.clock import now
from core.errors import Unavailable
from core.tables.versions import Version
from core.tracking import publisher
from tests.core.tracking.shown import Shown
from tests.core.tracking.tracked_model import NewTrackedModel, TrackedModel, trained
from tests.servers import free_port


def test_an_interrupted_publisher_continues_without_publishing_twice(
    new_tracked: NewTrackedModel, server: str, client: MlflowClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    class CutOff(BaseException):
        pass

    tracked, hold, calls = trained(new_tracked), publisher.MutexKeeper.__call__, [0, 0]

    def cut(self: publisher.MutexKeeper, at_once: bool = False) -> None:
        calls[0] += 1
        if calls[0] > calls[1]:
            raise CutOff
        hold(self, at_once)

    monkeypatch.setattr(publisher.MutexKeeper, "__call__", cut)
    cuts = 0
    while tracked.entries:
        calls[:] = [0, calls[1] + 4]
        try:
            tracked.publish(server)
        except CutOff:
            cuts += 1
    assert cuts > 5
    assert_once(tracked, Shown(client, tracked.name))


def assert_once(tracked: TrackedModel, shown: Shown) -> None:
    """Everything there once: a version, and what belongs to it."""
    everything = shown.everything()
    assert len(shown.runs()) == len(everything["versions"]) == everything["count"] == len(everything["models"]) == 1
    for run in everything["runs"].values():
        assert len({point[:2] for point in run["points"]}) == len(run["points"])
        assert len(run["datasets"]) <= 1
        assert len(run["outputs"]) <= 1
    assert everything["aliases"]["champion"] == shown.versions()["1"].version
    assert tracked.versions[0].mlflow is not None


KILLED = """
import os, signal, sys
from mlflow import MlflowClient
from core.database import Database
from core.settings import Settings
from core.tracking import publisher
from core.versions.store import Store

setattr(MlflowClient, sys.argv[3], lambda *_, **__: os.kill(os.getpid(), signal.SIGKILL))
settings = Settings(home=sys.argv[1])
publisher.publish(Database(settings), Store(settings.artifacts), sys.argv[2], "killed")
"""


@pytest.mark.parametrize("call", ["log_inputs", "log_model_artifacts", "log_artifacts"])
def test_killed_on_the_way_it_is_followed_by_another(
    new_tracked: NewTrackedModel,
    server: str,
    client: MlflowClient,
    call: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    tracked = trained(new_tracked)
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(temporary))
    command = [sys.executable, "-c", KILLED, str(tracked.settings.home), server, call]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "TMPDIR": str(temporary)}
    assert subprocess.run(command, env=environment).returncode == -signal.SIGKILL
    assert bool(list(temporary.iterdir())) == call.endswith("artifacts")
    assert tracked.entries != []
    assert tracked.publish(server) == 0  # until the lease of the dead is over
    with tracked.database.write() as session:
        session.execute(update(mutex.Mutex).values(expires_at=now()))
    tracked.publish(server)
    assert tracked.entries == []
    assert list(temporary.iterdir()) == []
    assert_once(tracked, Shown(client, tracked.name))


def test_while_mlflow_is_down_everything_waits(new_tracked: NewTrackedModel, server: str, client: MlflowClient) -> None:
    tracked = trained(new_tracked)
    waiting = [(entry.id, entry.attempts) for entry in tracked.entries]
    with pytest.raises(Unavailable) as refused:
        tracked.publish(f"http://127.0.0.1:{free_port()}")
    assert refused.value.code == "mlflow_unavailable"
    assert [(entry.id, entry.attempts) for entry in tracked.entries] == waiting
    assert tracked.publish(server) == len(waiting)
    assert shown_runs(client, tracked) == {"version 1, trained"}


def test_while_mlflow_refuses_our_password_everything_waits(
    new_tracked: NewTrackedModel, server: str, client: MlflowClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    tracked = trained(new_tracked)
    waiting = [(entry.id, entry.attempts) for entry in tracked.entries]
    with monkeypatch.context() as wrong:
        wrong.setenv("MLFLOW_TRACKING_PASSWORD", "of last year")
        with pytest.raises(Unavailable, match="AMEND_MLFLOW_PASSWORD") as refused:
            tracked.publish(server)
    assert refused.value.code == "mlflow_unavailable"
    assert [(entry.id, entry.attempts) for entry in tracked.entries] == waiting
    assert tracked.publish(server) == len(waiting)
    assert shown_runs(client, tracked) == {"version 1, trained"}


class Wire:
    """A way to a server that breaks after a number of requests."""

    def __init__(self, url: str, requests: int = 2**31, port: int = 0) -> None:
        host, far = url.removeprefix("http://").split(":")
        self.far, self.left = (host, int(far)), requests
        self.door = socket.create_server(("127.0.0.1", port))
        self.port = int(self.door.getsockname()[1])
        self.url = f"http://127.0.0.1:{self.port}"
        self.ends: list[socket.socket] = []
        threading.Thread(target=self.open, daemon=True).start()

    def open(self) -> None:
        while True:
            try:
                near = self.door.accept()[0]
            except OSError:
                return
            far = socket.create_connection(self.far)
            self.ends += [near, far]
            threading.Thread(target=self.carry, args=(near, far, True), daemon=True).start()
            threading.Thread(target=self.carry, args=(far, near, False), daemon=True).start()

    def carry(self, source: socket.socket, to: socket.socket, counted: bool) -> None:
        try:
            while data := source.recv(2**16):
                self.left -= counted
                if self.left < 0:
                    self.cut()
                to.sendall(data)
        except OSError:
            pass

    def cut(self) -> None:
        for one in (self.door, *self.ends):
            with suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)
            one.close()


def test_when_the_connection_breaks_the_entry_waits(
    new_tracked: NewTrackedModel, server: str, client: MlflowClient
) -> None:
    tracked = trained(new_tracked)
    wire = Wire(server, requests=20)
    with pytest.raises(Unavailable) as refused:
        tracked.publish(wire.url)
    wire.cut()
    assert refused.value.code == "mlflow_unavailable"
    waiting = len(tracked.entries)
    assert {entry.attempts for entry in tracked.entries} == {0}
    # the same address: MLflow's client remembers where files go
    mended = Wire(server, port=wire.port)
    assert tracked.publish(mended.url) == waiting
    mended.cut()
    assert shown_runs(client, tracked) == {"version 1, trained"}


def shown_runs(client: MlflowClient, tracked: TrackedModel) -> set[str]:
    return set(Shown(client, tracked.name).runs())


def test_a_rejected_event_does_not_delay_others(
    new_tracked: NewTrackedModel, server: str, client: MlflowClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    bad, good = trained(new_tracked), trained(new_tracked)
    with bad.database.write() as session:
        session.get_one(Version, (bad.model.id, 1)).metrics = {"no $ metric": 1.0}
    told = len(bad.entries) - 1
    assert good.publish(server) == told
    assert shown_runs(client, good) == {"version 1, trained"}
    (left,) = bad.entries
    assert (left.model, left.attempts) == (bad.name, 1)
    assert left.error is not None
    assert left.error.startswith("RestException: ")
    assert good.publish(server) == 0, "it rests for a while"
    assert bad.entries[0].attempts == 1
    monkeypatch.setattr(publisher, "FIRST_RETRY_SECONDS", 0.0)
    with structlog.testing.capture_logs() as lines:
        for _ in range(publisher.MAX_ATTEMPTS - 1):
            assert good.publish(server) == 0
    assert bad.entries == []
    assert [line["event"] for line in lines if line["log_level"] == "warning"] == ["tracking_event_dropped"]


def test_one_process_at_a_time_publishes(new_tracked: NewTrackedModel, server: str) -> None:
    tracked = trained(new_tracked)
    assert mutex.acquire(tracked.database, publisher.MUTEX, "somebody else", 60)
    assert tracked.publish(server) == 0
    assert tracked.entries != []
    mutex.release(tracked.database, publisher.MUTEX, "somebody else")
    assert tracked.publish(server) > 0
    assert mutex.acquire(tracked.database, publisher.MUTEX, "somebody else", 60)
    mutex.release(tracked.database, publisher.MUTEX, "somebody else")
