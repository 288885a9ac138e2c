"""`python -m migrations` as an operator or a starting container runs it, and the service that depends on it."""

from __future__ import annotations

import os
import runpy
import subprocess
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path
from unittest.mock import patch

import pytest
import sqlalchemy as sa
import uvicorn
from psycopg import sql
from sqlalchemy import func, select

from core.keys import api_keys, queries
from core.tables.keys import Key
from migrations import __main__ as command
from migrations import runner
from tests.conftest import BACKENDS
from tests.servers import PostgresServer
from tests.stack import Stack

CHECK = "Check AMEND_DATABASE_URL and AMEND_DATABASE_PASSWORD."
GIVEN = "amend_0123456789ab_abcdefghijklmnopqrstuvwxyz"

MakeStack = Callable[..., Stack]
Run = Callable[..., tuple[int, str, str]]


@pytest.fixture(params=BACKENDS)
def make_stack(request: pytest.FixtureRequest, tmp_path: Path) -> MakeStack:
    """A service on an empty database, not started."""
    url = ""
    if request.param == "postgresql":
        url = request.getfixturevalue("postgres").create_database(f"m{tmp_path.name[-40:]}".lower())
    return lambda **environment: Stack(tmp_path, url, **environment)


def start(stack: Stack, module: str = "migrations") -> subprocess.Popen[str]:
    return subprocess.Popen(
        stack.command(module), env=stack.complete(), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Run:
    """Runs a module as `python -m` does, but in this process, which is faster."""
    monkeypatch.setattr(uvicorn, "run", lambda *_, **__: pytest.fail("the service starts"))

    def run(stack: Stack, module: str = "migrations") -> tuple[int, str, str]:
        spec = find_spec(f"{module}.__main__")
        assert spec is not None
        assert spec.origin is not None
        mask, message = os.umask(0o022), ""
        try:
            with patch.dict(os.environ, stack.complete(), clear=True):
                runpy.run_path(spec.origin, run_name="__main__")
        except SystemExit as end:
            message = f"{end.code}\n"
        finally:
            os.umask(mask)
        out, error = capsys.readouterr()
        return int(bool(message)), out, error + message

    return run


def keys(stack: Stack) -> int:
    with stack.database.read() as session:
        return session.scalar(select(func.count()).select_from(Key)) or 0


def test_the_first_run_writes_an_admin_key_for_its_owner_only_and_later_runs_write_nothing(
    make_stack: MakeStack, run: Run
) -> None:
    stack = make_stack()
    file = stack.folder / "home" / "admin.key"
    code, out, error = run(stack)
    assert (code, error) == (0, "")
    assert str(file) in out
    assert file.stat().st_mode & 0o777 == 0o600
    assert file.parent.stat().st_mode & 0o777 == 0o700
    assert stack.admin_key not in out
    first = stack.admin_key
    with stack.database.read() as session:
        key = api_keys.check(session, first)
        assert key is not None
        assert key.scopes == ["admin"]

    code, out, error = run(stack)
    assert (code, error) == (0, "")
    assert out.startswith(f"database: at {runner.newest()}\nadmin key: exists already")
    assert stack.admin_key == first
    assert keys(stack) == 1


def test_a_given_admin_key_is_stored_and_not_written_to_a_file(make_stack: MakeStack, run: Run) -> None:
    stack = make_stack(AMEND_ADMIN_KEY=GIVEN)
    for _ in range(2):
        code, out, _ = run(stack)
        assert code == 0
        assert GIVEN not in out
    assert not (stack.folder / "home" / "admin.key").exists()
    with stack.database.read() as session:
        assert api_keys.check(session, GIVEN) is not None
    assert keys(stack) == 1


def test_a_malformed_key_is_rejected_in_one_line(make_stack: MakeStack, run: Run) -> None:
    code, _, error = run(make_stack(AMEND_ADMIN_KEY="password"))
    assert code != 0
    assert error.count("\n") == 1
    assert "A key has the form" in error
    assert "password" not in error


def test_three_concurrent_runs_create_one_key(make_stack: MakeStack) -> None:
    stack = make_stack()
    processes = [start(stack) for _ in range(3)]
    outputs = [process.communicate(timeout=60) for process in processes]
    assert [process.returncode for process in processes] == [0, 0, 0], outputs
    assert [error for _, error in outputs] == ["", "", ""]
    assert keys(stack) == 1
    with stack.database.read() as session:
        assert api_keys.check(session, stack.admin_key) is not None


@pytest.mark.parametrize("given", ["", GIVEN], ids=["made", "given"])
def test_two_runs_that_look_for_an_admin_key_at_once_create_one_key(
    make_stack: MakeStack, given: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    stack = make_stack()
    for name, value in {**stack.environment, "AMEND_ADMIN_KEY": given}.items():
        monkeypatch.setenv(name, value)
    runner.upgrade(stack.database)
    both, look = threading.Barrier(2), queries.has_admin

    def has_admin(session: sa.orm.Session) -> bool:
        found = look(session)
        with suppress(threading.BrokenBarrierError):
            both.wait(1)  # the first run waits here for the second, which must not get here
        return found

    monkeypatch.setattr(queries, "has_admin", has_admin)
    with ThreadPoolExecutor(2) as threads:
        for done in [threads.submit(command.main) for _ in range(2)]:
            done.result()
    assert keys(stack) == 1


def test_the_service_does_not_start_on_an_empty_database(make_stack: MakeStack, run: Run) -> None:
    code, _, error = run(make_stack(), "service")
    assert code != 0
    assert error.startswith("The database ")
    assert error.endswith(f" is empty. Run `amend migrate`. {CHECK}\n")


def test_the_service_does_not_start_on_a_newer_database(make_stack: MakeStack, run: Run) -> None:
    stack = make_stack()
    runner.upgrade(stack.database)
    with stack.database.write() as session:
        session.execute(sa.text("UPDATE alembic_version SET version_num = 'future'"))
    code, _, error = run(stack, "service")
    assert code != 0
    assert error.count("\n") == 1
    assert "newer (future)" in error


@pytest.mark.parametrize("module", ["service", "migrations", "worker", "worker.scheduler"])
def test_a_database_that_does_not_respond_is_reported_in_one_line_without_its_password(
    tmp_path: Path, module: str
) -> None:
    stack = Stack(tmp_path, "postgresql+psycopg://user:hidden-word@127.0.0.1:1/amend")
    process = start(stack, module)
    _, error = process.communicate(timeout=60)
    assert process.returncode == 1
    assert error == f"The database amend at 127.0.0.1 does not respond. {CHECK}\n"


@pytest.fixture
def guarded(postgres: PostgresServer) -> Iterator[sa.URL]:
    """The URL of a user who needs the password `hidden-word`. All other users still need none."""
    if postgres.program is None:
        pytest.skip("the configuration of an external server is not changed")
    rules = postgres.program.folder / "data" / "pg_hba.conf"
    before = rules.read_text()
    rules.write_text(f"host all careful all scram-sha-256\n{before}")
    postgres.execute(sql.SQL("CREATE ROLE careful LOGIN PASSWORD 'hidden-word'"))
    postgres.execute(sql.SQL("SELECT pg_reload_conf()"))
    yield sa.make_url(postgres.url).set(username="careful", password="hidden-word")
    rules.write_text(before)
    postgres.execute(sql.SQL("SELECT pg_reload_conf()"))
    postgres.execute(sql.SQL("DROP ROLE careful"))


def test_problems_with_a_postgresql_url_are_reported_plainly(guarded: sa.URL, tmp_path: Path, run: Run) -> None:
    cases = {
        guarded.set(
            password="hidden-guess"
        ): f"The database postgres at 127.0.0.1 rejected the user careful or the password. {CHECK}",
        guarded.set(
            password=None
        ): f"The database postgres at 127.0.0.1 requires a password for the user careful. {CHECK}",
        guarded.set(
            username="nobody"
        ): f"The user nobody does not exist in the database postgres at 127.0.0.1. {CHECK}",
        guarded.set(database="amned"): f"The database amned at 127.0.0.1 does not exist. {CHECK}",
        guarded.set(host="host.invalid"): f"Cannot resolve the host of the database postgres at host.invalid. {CHECK}",
        guarded: f"The user careful may not create tables in the database postgres at 127.0.0.1. {CHECK}",
    }
    for url, expected in cases.items():
        assert run(Stack(tmp_path, url.render_as_string(hide_password=False))) == (1, "", f"{expected}\n")


@pytest.mark.parametrize("password", ["hid@den", "hid@d/en", "hid/d@en"])
def test_a_password_that_a_url_cannot_hold_is_not_shown_in_part(password: str, tmp_path: Path, run: Run) -> None:
    code, out, error = run(Stack(tmp_path, f"postgresql://user:{password}@127.0.0.1:1/amend"))
    assert (code, out) == (1, "")
    assert error == "AMEND_DATABASE_URL: write an @ in the password as %40, or set AMEND_DATABASE_PASSWORD.\n"


def test_problems_with_an_sqlite_file_are_reported_plainly(tmp_path: Path, run: Run) -> None:
    (tmp_path / "letter").write_text("Dear Sir or Madam, " * 100)
    cases = {
        "letter": f"The file {tmp_path}/letter is not an SQLite database. {CHECK}",
        "none/amend.db": f"Cannot open the database file {tmp_path}/none/amend.db. {CHECK}",
    }
    for name, expected in cases.items():
        assert run(Stack(tmp_path, f"sqlite:///{tmp_path}/{name}")) == (1, "", f"{expected}\n")


@pytest.mark.parametrize("module", ["service", "migrations"])
@pytest.mark.parametrize("scheme", ["gs", "az", "hdfs", "levitation"])
def test_a_store_without_a_driver_is_rejected_in_one_line(module: str, scheme: str, tmp_path: Path, run: Run) -> None:
    stack = Stack(tmp_path)
    if module == "service":
        assert run(stack)[0] == 0
    stack.environment["AMEND_ARTIFACTS_URL"] = f"{scheme}://user:hidden@bucket/amend"
    code, out, error = run(stack, module)
    assert (code, out) == (1, "")
    assert error.startswith(f"AMEND_ARTIFACTS_URL: no driver for {scheme}:// is installed. ")
    assert error.count("\n") == 1
    assert "hidden" not in error


@pytest.mark.parametrize("module", ["migrations", "service"])
def test_a_secret_that_differs_from_the_databases_is_rejected(module: str, make_stack: MakeStack, run: Run) -> None:
    stack = make_stack()
    assert run(stack)[0] == 0
    stack.environment["AMEND_SECRET_KEY"] = "another"
    code, _, error = run(stack, module)
    assert code != 0
    assert "AMEND_SECRET_KEY" in error
    assert error.count("\n") == 1


def test_a_given_admin_key_is_stored_even_if_another_exists(make_stack: MakeStack, run: Run) -> None:
    stack = make_stack()
    run(stack)
    given = "amend_operators1_" + "k" * 30
    stack.environment["AMEND_ADMIN_KEY"] = given
    assert run(stack)[:2] == (0, f"database: at {runner.newest()}\nadmin key: AMEND_ADMIN_KEY\n")
    with stack.database.read() as session:
        assert api_keys.check(session, given) is not None


@pytest.mark.parametrize(
    ("variable", "value"),
    [
        ("AMEND_PORT", "abc"),
        ("AMEND_PROCESSES", "0"),
        ("AMEND_DATABASE_URL", "mysql://user:hidden@x/y"),
        ("AMEND_DATABASE_URL", "postgresql+psycop://user:hidden@x/y"),
        ("AMEND_DATABASE_URL", "nonsense"),
        ("AMEND_HOME", "/proc/none"),
    ],
)
@pytest.mark.parametrize("module", ["migrations", "service"])
def test_an_invalid_setting_is_reported_in_one_line(
    module: str, variable: str, value: str, tmp_path: Path, run: Run
) -> None:
    stack = Stack(tmp_path)
    stack.environment[variable] = value
    code, _, error = run(stack, module)
    assert code != 0
    assert variable in error
    assert error.count("\n") == 1
    assert "hidden" not in error
