"""`amend up` as a user has it: the whole of Amend from one command, which survives its parts and leaves none behind."""

from __future__ import annotations

import json
import os
import re
import resource
import signal
import socket
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import httpx
import pytest
from sqlalchemy import text

from core.database import Database
from core.settings import Settings
from migrations import runner
from tests.endurance.fleet import children, gone
from tests.servers import die_with_parent, free_port
from tests.test_readme import TUTORIAL, calls

pytestmark = pytest.mark.timing

AMEND = "from amend.cli import main; main()"
NOBODY = 65534
# Where the command line of each part ends, or begins.
PARTS = {
    "service": "-m service",
    "scheduler": "-m worker.scheduler",
    "worker": "-m worker",
    "mlflow": "-m amend.up.mlflow_server",
    "broker": "valkey-server",
}


class Up:
    """One home folder, and the `amend up` that runs in it."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.home, self.out = folder, folder / "home", folder / "out"
        self.port, self.mlflow_port = free_port(), free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self.environment = {
            "AMEND_HOME": str(self.home),
            "AMEND_PORT": str(self.port),
            "AMEND_MLFLOW_PORT": str(self.mlflow_port),
            "AMEND_LEASE_SECONDS": "3",
            "AMEND_RESEND_SECONDS": "2",
            "AMEND_SHUTDOWN_TIMEOUT": "1",
            # of another server, which the user knows
            "MLFLOW_TRACKING_USERNAME": "somebody",
            "MLFLOW_TRACKING_PASSWORD": "else's",
        }
        self.process: subprocess.Popen[bytes] | None = None
        self.opened, self.browser = folder / "opened", folder / "browser"
        self.browser.write_text(f'#!/bin/sh\necho "$1" >> "{self.opened}"\n')
        self.browser.chmod(0o700)

    def complete(self, **more: str) -> dict[str, str]:
        """The environment of a process: nobody's own settings, and ours."""
        others = {name: value for name, value in os.environ.items() if not name.startswith("AMEND_")}
        return others | self.environment | more

    def start(self, until: str = "ready: ", **more: str) -> None:
        """Start it, and wait for a line that begins with `until`."""
        with self.out.open("wb") as out:
            self.process = subprocess.Popen(
                [sys.executable, "-c", AMEND, "up", "--open"],
                env=self.complete(BROWSER=str(self.browser), **more),
                cwd=self.folder,
                stdout=out,
                stderr=out,
                preexec_fn=die_with_parent,
            )
        self.wait_until(lambda: f"\n{until}" in self.out.read_text())

    def refuses(self, code: str = AMEND, **options: Any) -> str:
        """What it says, in one line, when it does not start; and it leaves no process."""
        done = subprocess.run(
            [sys.executable, "-c", code, "up"],
            env=self.complete(**options.pop("environment", {})),
            cwd=self.folder,
            capture_output=True,
            text=True,
            timeout=60,
            **options,
        )
        assert done.returncode == 1, done.stdout + done.stderr
        assert done.stderr.startswith("amend: ")
        assert done.stderr.count("\n") == 1, done.stderr
        return done.stderr

    def wait_until(self, true: Callable[[], bool], seconds: float = 90) -> None:
        end = time.monotonic() + seconds
        while not true():
            assert self.process is not None
            if time.monotonic() > end or self.process.poll() not in (None, -signal.SIGKILL):
                logs = [self.out, *(self.home / "logs").glob("*.log")]
                raise AssertionError("\n".join(f"{log}:\n{log.read_text()[-2000:]}" for log in logs))
            time.sleep(0.1)

    def parts(self) -> dict[str, int]:
        """The processes of the parts that run, by name."""
        assert self.process is not None
        commands = {process: command_of(process) for process in children(self.process.pid)}
        found = {
            name: [p for p, c in commands.items() if re.search(rf"{end}(?![.\w])", c)] for name, end in PARTS.items()
        }
        return {name: processes[0] for name, processes in found.items() if processes}

    def all_processes(self) -> list[int]:
        """The supervisor, its children and theirs."""
        assert self.process is not None
        found, new = [], [self.process.pid]
        while new:
            found += new
            new = [child for process in new for child in children(process)]
        return found

    def call(self, method: str, path: str, body: Any = None) -> Any:
        key = (self.home / "admin.key").read_text().strip()
        answer = httpx.request(
            method, self.url + path, json=body, headers={"Authorization": f"Bearer {key}"}, timeout=60, verify=False
        )
        return answer.raise_for_status().json()

    def status(self) -> str:
        try:
            return str(httpx.get(f"{self.url}/readyz", timeout=10, verify=False).json()["status"])
        except httpx.HTTPError:
            return "away"

    def runs_a_job(self) -> None:
        """Data comes in, and a job takes it up."""
        self.wait_until(lambda: self.status() in ("ready", "degraded"))
        number = self.call("GET", "/v1/models/m")["head"]
        rows = [{"id": f"e{number + i}", "x": [i, 1 - i], "y": i, "split": "train"} for i in range(2)]
        self.call("POST", "/v1/models/m/examples", {"examples": rows})
        job = self.call("POST", "/v1/models/m/adaptations")["id"]
        ended = self.call("GET", f"/v1/jobs/{job}?wait=60")
        assert ended["state"] == "succeeded", ended
        assert ended["to_position"] == number + 2


@pytest.fixture
def up(tmp_path: Path) -> Iterator[Up]:
    up = Up(tmp_path)
    yield up
    if up.process is not None and up.process.poll() is None:
        up.process.terminate()
        up.process.wait(60)


def command_of(process: int) -> str:
    try:
        return Path(f"/proc/{process}/cmdline").read_text().replace("\0", " ")
    except FileNotFoundError:
        return ""


def test_the_whole_of_amend_lives_through_the_death_of_each_part_and_of_its_supervisor(up: Up) -> None:
    up.start()
    it_says_where_everything_is(up)
    mlflow_knows_who_has_its_password(up)
    the_calls_of_the_tutorial_succeed(up)
    a_second_one_is_refused(up)
    each_part_comes_back(up)
    erased = a_person_is_erased_after_a_copy_of_the_database(up)
    killed_it_leaves_nothing_and_the_next_goes_on(up)
    told_to_stop_it_leaves_nothing(up)
    with_the_older_database_jobs_wait_for_the_replay(up, erased)


def it_says_where_everything_is(up: Up) -> None:
    out, home = up.out.read_text(), up.home
    assert f"admin key: written to {home}/admin.key\n" in out
    [ready] = [line for line in out.splitlines() if line.startswith("ready: ")]
    for place in (up.url, f"http://127.0.0.1:{up.mlflow_port}", f"{home}/admin.key", f"{home}/logs", "Ctrl-C"):
        assert place in ready
    assert f"(user amend, password in {home}/mlflow.key)" in ready
    up.wait_until(lambda: up.opened.exists() and up.opened.read_text() == f"{up.url}\n")
    # MLflow starts when everything else is ready, and jobs do not wait for it
    assert "\nmlflow: OK" not in out.partition("\nready: ")[0]
    up.wait_until(lambda: "\nmlflow: OK" in up.out.read_text())
    assert set(up.parts()) == set(PARTS)
    assert up.status() == "ready"
    logs = {path.name: path.stat().st_mode & 0o777 for path in (home / "logs").iterdir()}
    assert logs == {f"{name}.log": 0o600 for name in (*PARTS, "migrate")}
    assert {(home / name).stat().st_mode & 0o777 for name in ("admin.key", "mlflow.key")} == {0o600}


def mlflow_knows_who_has_its_password(up: Up) -> None:
    password = (up.home / "mlflow.key").read_text().strip()
    answers = []
    for auth in (None, ("amend", "guessed"), ("amend", password)):
        url = f"http://127.0.0.1:{up.mlflow_port}/api/2.0/mlflow/registered-models/create"
        answers.append(httpx.post(url, json={"name": "planted"}, auth=auth, verify=False).status_code)
    assert answers == [401, 401, 200]
    assert password not in "".join(path.read_text() for path in [up.out, *(up.home / "logs").iterdir()])


def the_calls_of_the_tutorial_succeed(up: Up) -> None:
    for script in calls([TUTORIAL], up.url, str(up.home)):
        done = subprocess.run(["bash", "-ec", script], capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        answer = json.loads(done.stdout)
        assert "code" not in answer, f"{script}\n{answer}"
    # the erasure among them goes through every part, MLflow included: it takes our password
    up.wait_until(lambda: {erasure["state"] for erasure in up.call("GET", "/v1/erasures")["items"]} == {"completed"})


def a_second_one_is_refused(up: Up) -> None:
    assert up.process is not None
    assert f"process {up.process.pid}" in up.refuses()
    assert up.status() == "ready"


def each_part_comes_back(up: Up) -> None:
    up.call("POST", "/v1/models", {"name": "m", "input": {"kind": "vector", "dim": 2}, "target": {"kind": "binary"}})
    for name in ("mlflow", "broker", "worker", "scheduler", "service"):
        before = up.parts()
        os.kill(before[name], signal.SIGKILL)
        up.wait_until(lambda name=name, before=before: up.parts().get(name, before[name]) != before[name])
        assert {n: p for n, p in up.parts().items() if n != name} == {n: p for n, p in before.items() if n != name}
        assert f"{name}: was killed by signal 9; restarting" in up.out.read_text()
        if name != "scheduler":
            up.runs_a_job()
    up.wait_until(lambda: up.status() == "ready")


def a_person_is_erased_after_a_copy_of_the_database(up: Up) -> dict[str, Any]:
    """The erasure, with the position of the person's first example as `from`."""
    first = up.call("GET", "/v1/models/m")["head"] + 1
    rows = [{"id": f"p{i}", "x": [i, 1 - i], "y": i, "split": "train", "subject": "ann"} for i in range(2)]
    up.call("POST", "/v1/models/m/examples", {"examples": rows})
    up.runs_a_job()
    with closing(sqlite3.connect(up.home / "amend.db")) as source, closing(sqlite3.connect(up.folder / "copy")) as copy:
        source.backup(copy)
    id = up.call("POST", "/v1/erasures", {"subject": "ann"})["id"]
    up.wait_until(lambda: bool(up.call("GET", f"/v1/erasures/{id}")["state"] == "completed"))
    return {**up.call("GET", f"/v1/erasures/{id}"), "from": first}


def with_the_older_database_jobs_wait_for_the_replay(up: Up, erased: dict[str, Any]) -> None:
    """The copy contains the person again, and nothing is trained before the erasure is repeated."""
    for old in up.home.glob("amend.db*"):
        old.unlink()
    (up.folder / "copy").rename(up.home / "amend.db")
    up.start(until="jobs wait: receipts_behind: ")
    ready = httpx.get(f"{up.url}/readyz", timeout=10, verify=False)
    assert (ready.status_code, ready.json()["status"]) == (503, "down")
    before = up.call("GET", "/v1/models/m")
    job = up.call("POST", "/v1/models/m/retrains")["id"]
    up.wait_until(lambda: "amend erasures replay" in up.call("GET", f"/v1/jobs/{job}")["message"])
    assert up.call("GET", "/v1/models/m")["champion"] == before["champion"]

    replay = [sys.executable, "-c", AMEND, "erasures", "replay"]
    done = subprocess.run(replay, env=up.complete(), capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    up.wait_until(lambda: up.status() == "ready" and "\nready: " in up.out.read_text())
    assert up.call("GET", f"/v1/jobs/{job}?wait=60")["state"] == "succeeded"
    [again] = [one for one in up.call("GET", "/v1/erasures")["items"] if one["repeats"] == erased["id"]]
    up.wait_until(lambda: bool(up.call("GET", f"/v1/erasures/{again['id']}")["state"] == "completed"))
    assert up.call("GET", erased["receipt"])["erasure"] == erased["id"]
    after = up.call("GET", "/v1/models/m")
    assert after["counts"]["train"] == before["counts"]["train"] - 2
    kept = [one for one in up.call("GET", "/v1/models/m/versions")["items"] if one["state"] != "purged"]
    assert not any(erased["from"] <= one["position"] <= before["head"] for one in kept), kept


def killed_it_leaves_nothing_and_the_next_goes_on(up: Up) -> None:
    """The next uses an MLflow that is somebody else's, and not there."""
    assert up.process is not None
    left = up.all_processes()
    assert len(left) > len(PARTS)
    up.process.kill()
    up.start(AMEND_MLFLOW_URL="http://127.0.0.1:1")
    assert all(gone(process) for process in left)
    assert "mlflow: not started, because AMEND_MLFLOW_URL is set\n" in up.out.read_text()
    assert set(up.parts()) == {*PARTS} - {"mlflow"}
    up.runs_a_job()


def told_to_stop_it_leaves_nothing(up: Up) -> None:
    assert up.process is not None
    left = up.all_processes()
    up.process.terminate()
    assert up.process.wait(60) == 0
    assert all(gone(process) for process in left)
    assert up.out.read_text().endswith("stopped: all processes have ended\n")


@pytest.mark.parametrize("setting", ["AMEND_PORT", "AMEND_MLFLOW_PORT"])
def test_a_port_in_use_is_named(up: Up, setting: str) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", int(up.environment[setting])))
        taken.listen()
        said = up.refuses()
    assert f"{setting}: cannot use port {up.environment[setting]} " in said
    assert "in use" in said
    assert not (up.home / "amend.db").exists()


def test_a_port_that_is_none_is_named(up: Up) -> None:
    assert "AMEND_PORT: 'eighty' is not a port number" in up.refuses(environment={"AMEND_PORT": "eighty"})


def test_an_unusable_database_is_reported_without_its_password(up: Up) -> None:
    said = up.refuses(environment={"AMEND_DATABASE_URL": "postgresql://amend:hidden@127.0.0.1:1/amend"})
    check = "Check AMEND_DATABASE_URL and AMEND_DATABASE_PASSWORD."
    assert said == f"amend: The database amend at 127.0.0.1 does not respond. {check}\n"


def test_a_folder_that_mlflow_would_misread_is_named(up: Up) -> None:
    assert "MLflow does not support %" in up.refuses(environment={"AMEND_HOME": str(up.folder / "100%")})


def test_a_folder_that_cannot_be_written_is_named(up: Up) -> None:
    """Root may write everywhere, so it becomes nobody; but late, as Python itself may lie where only root can read."""
    up.folder.chmod(0o500)
    drop = (
        f"import os, amend.up.run as r; do = r.run; r.run = lambda *a: (os.getuid() or os.setuid({NOBODY}), do(*a))[1]"
    )
    said = up.refuses(f"{drop}\n{AMEND}")
    up.folder.chmod(0o700)
    assert said == f"amend: AMEND_HOME: cannot use {up.home} (Permission denied).\n"


def test_a_full_disk_is_reported(up: Up) -> None:
    """A limit on the size of files stands in for the disk's: the write fails in the same place."""
    limit = (2**20, 2**20)
    said = up.refuses(preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, limit))
    assert said == f"amend: AMEND_HOME: cannot use {up.home} (File too large). 32 MB must be free.\n"
    assert not any(path.stat().st_size > 100 for path in up.home.rglob("*") if path.is_file())


def test_a_newer_database_is_reported_and_no_process_is_left(up: Up) -> None:
    database = Database(Settings(home=up.home))
    runner.upgrade(database)
    with database.write() as session:
        session.execute(text("UPDATE alembic_version SET version_num = 'future'"))
    database.close()
    said = up.refuses(environment={"AMEND_TRIAL": "of a setting that there is not"})
    assert said.startswith("amend: The database is newer (future)")
    # whoever runs there still would have the socket open, or answer on it
    with socket.socket(socket.AF_UNIX) as probe, pytest.raises(OSError, match="refused|No such file"):
        probe.connect(str(Settings(home=up.home).broker_socket))
