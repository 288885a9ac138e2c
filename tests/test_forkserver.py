"""Processes that are forked behave as those that are started."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.endurance.fleet import gone
from tests.forkserver import Forked, fork

pytestmark = pytest.mark.timing

ROOT = Path(__file__).parents[1]
ASKS_AND_DIES = """
import os, signal, sys, time
from pathlib import Path
from tests.forkserver import fork
home = Path(os.environ["AMEND_HOME"])
process = fork([sys.executable, "-m", "worker.broker"], dict(os.environ), home / "log")
while not any(home.glob("broker/*")):  # it runs
    time.sleep(0.02)
print(process.pid, flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""


def forked(module: str, folder: Path, **environment: str) -> Forked:
    given = {"PATH": os.environ["PATH"], "AMEND_HOME": str(folder / "home"), **environment}
    return fork([sys.executable, "-P", "-m", module], given, folder / "log")


def test_it_has_an_environment_a_log_and_an_exit_code(tmp_path: Path) -> None:
    assert forked("migrations", tmp_path).wait(60) == 0
    assert (tmp_path / "home" / "admin.key").exists()
    assert "admin key: written to" in (tmp_path / "log").read_text()
    assert forked("migrations", tmp_path, AMEND_DATABASE_URL="nonsense").wait(60) == 1
    assert "AMEND_DATABASE_URL" in (tmp_path / "log").read_text()


def test_it_can_be_waited_for_and_killed(tmp_path: Path) -> None:
    broker = forked("worker.broker", tmp_path)
    assert broker.poll() is None
    with pytest.raises(subprocess.TimeoutExpired):
        broker.wait(0.1)
    broker.kill()
    assert broker.wait(10) == broker.poll() == -signal.SIGKILL
    assert not Path(f"/proc/{broker.pid}").exists()


def test_a_forked_process_ends_with_the_process_that_requested_it(tmp_path: Path) -> None:
    command = [sys.executable, "-c", ASKS_AND_DIES]
    environment = {**os.environ, "AMEND_HOME": str(tmp_path)}
    done = subprocess.run(command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, text=True, timeout=60)
    assert done.returncode == -signal.SIGKILL
    end = time.monotonic() + 30
    while not gone(int(done.stdout)):
        assert time.monotonic() < end
        time.sleep(0.05)
