"""A worker sends heartbeats while it starts processes: they must not inherit a transaction."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.stack import Stack

pytestmark = pytest.mark.timing

FORK_DURING_A_HEARTBEAT = """
import os, threading, time
from contextlib import contextmanager

import worker.__main__ as main
from core.clock import now
from core.database import Database
from core.tables.jobs import Worker
from core.settings import from_environment

within = threading.Event()

class Slow(Database):
    @contextmanager
    def write(self):
        with super().write() as session:
            yield session
            session.flush()
            within.set()
            time.sleep(0.5)

main.Database = Slow
settings = from_environment().model_copy(update={"database_timeout": 3.0})
threading.Thread(target=main.send_heartbeats, args=(settings, "forks"), daemon=True).start()
assert within.wait(20)
child = os.fork()
if child == 0:
    with Database(settings).write() as session:
        session.merge(Worker(name="forked", seen_at=now()))
    os._exit(0)
os._exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""


def test_a_process_that_is_started_during_a_heartbeat_can_write(stack: Stack) -> None:
    command = [sys.executable, "-P", "-c", FORK_DURING_A_HEARTBEAT]
    done = subprocess.run(command, env=stack.complete(), capture_output=True, timeout=60)
    assert done.returncode == 0, done.stderr.decode()
