"""The servers that other tests stand on: they start, keep databases apart, and leave nothing behind."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

import psycopg
import pytest
from redis import Redis

from tests import servers
from tests.endurance.fleet import gone

pytestmark = pytest.mark.timing

ROOT = Path(__file__).parents[1]


@pytest.fixture(autouse=True)
def _own_servers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("AMEND_TEST_POSTGRES_URL", raising=False)
    monkeypatch.delenv("AMEND_TEST_REDIS_URL", raising=False)


def test_databases_are_separate_and_nothing_stays_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    with servers.postgres() as server:
        one, two = server.create_database("one"), server.create_database("two")
        with psycopg.connect(servers.conninfo(one)) as connection:
            connection.execute("CREATE TABLE note (line text)")
        with psycopg.connect(servers.conninfo(two)) as connection:
            assert connection.execute("SELECT to_regclass('note')").fetchone() == (None,)
            server.drop_database("two")  # in spite of this connection
            with pytest.raises(psycopg.OperationalError):
                connection.execute("SELECT 1")

        # A server named by the environment is used as it is, and left running without our databases.
        monkeypatch.setenv("AMEND_TEST_POSTGRES_URL", server.url)
        with servers.postgres() as given:
            assert given.url == server.url
            borrowed = given.create_database("borrowed")
            assert servers.connects(borrowed)
        assert servers.connects(server.url)
        assert not servers.connects(borrowed)

        program = server.program
        assert program is not None
        assert program.process is not None
    assert program.process.returncode == 0
    assert not program.folder.exists()
    assert not servers.connects(server.url)


@pytest.mark.parametrize(("durable", "expected"), [(False, "off"), (True, "on")])
def test_only_a_durable_server_waits_for_the_disk(durable: bool, expected: str) -> None:
    with servers.postgres(durable=durable) as server, psycopg.connect(servers.conninfo(server.url)) as connection:
        assert connection.execute("SHOW fsync").fetchone() == (expected,)
        assert connection.execute("SHOW synchronous_commit").fetchone() == (expected,)


def test_redis_answers_and_nothing_stays_behind() -> None:
    with servers.redis() as server:
        with Redis.from_url(server.url) as client:
            client.set("key", "value")
            assert client.get("key") == b"value"
        program = server.program
    assert program is not None
    assert program.process is not None
    assert program.process.returncode is not None
    assert not program.folder.exists()


def test_a_server_that_fails_to_start_says_why_and_leaves_no_folder() -> None:
    program = servers.Program("broken")
    with pytest.raises(RuntimeError, match="no such"):
        program.start(["/bin/sh", "-c", "echo no such luck; exit 1"], lambda: False)
    program.stop()
    assert not program.folder.exists()


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux ends a child with its parent")
def test_server_dies_with_a_killed_parent() -> None:
    script = (
        "import os, signal, tests.servers as s\n"
        "server = s.start_redis()\n"
        "print(server.program.process.pid, server.program.folder, flush=True)\n"
        "os.kill(os.getpid(), signal.SIGKILL)"
    )
    answer = subprocess.run([sys.executable, "-c", script], cwd=ROOT, env=os.environ, capture_output=True, text=True)
    process, folder = answer.stdout.split()
    end = time.monotonic() + 10
    while not gone(int(process)) and time.monotonic() < end:
        time.sleep(0.02)
    assert gone(int(process))
    shutil.rmtree(folder)
