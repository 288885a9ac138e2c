"""What `pip install` of Amend brings: the client and the command alone, in an environment with nothing else in it."""

from __future__ import annotations

import os
import subprocess
import sys
import tomllib
import venv
from collections.abc import Callable
from pathlib import Path
from zipfile import ZipFile

import pytest

from tests.production.image import copy_context
from tests.stack import Stack

PROJECT = Path(__file__).parents[2] / "pyproject.toml"
VERSION = tomllib.loads(PROJECT.read_text())["project"]["version"]
NOT_THERE = ("torch", "numpy", "pandas", "pyarrow", "core", "service", "worker", "migrations", "bench")
PIP = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check"]
# A model with examples as plain values: frames and arrays are for those who have pandas or NumPy.
USE = """
import asyncio, sys
from amend import AsyncClient, Client

name = sys.argv[1]
with Client() as client:
    client.create_model(name, {"kind": "vector", "dim": 2}, {"kind": "binary"})
    examples = [{"id": f"e{i}", "x": [i / 10, 1.0], "y": i % 2} for i in range(10)]
    assert client.add_examples(name, examples).accepted == 10
    assert name in [model.name for model in client.models()]

async def listed():
    async with AsyncClient() as client:
        return [example.id async for example in client.examples(name)]

print(*asyncio.run(listed()))
"""

Run = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture(scope="session")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    copy_context(folder / "source")  # building leaves files there
    build = ["wheel", "--no-deps", "--no-build-isolation", "--wheel-dir", folder, folder / "source"]
    subprocess.run([*PIP, *build], check=True)
    return next(folder.glob("*.whl"))


@pytest.fixture(scope="session")
def run(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Run:
    """Run a program of an environment in which the wheel was installed, with what it asks for."""
    folder = tmp_path_factory.mktemp("environment")
    venv.create(folder, symlinks=True)
    subprocess.run([*PIP, "--python", folder / "bin/python", "install", "--no-compile", wheel], check=True)
    ours = ("PYTHON", "AMEND_")
    environment = {name: value for name, value in os.environ.items() if not name.startswith(ours)}

    def run(program: str, *arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [folder / "bin" / program, *arguments],
            cwd=folder,
            env={**environment, **variables},
            capture_output=True,
            text=True,
            timeout=60,
        )

    return run


def test_it_has_no_package_but_amend(wheel: Path) -> None:
    with ZipFile(wheel) as archive:
        tops = {name.partition("/")[0] for name in archive.namelist()}
    assert tops == {"amend", f"amend-{VERSION}.dist-info"}


def test_the_command_prints_its_version_and_help(run: Run) -> None:
    assert run("amend", "--version").stdout == f"amend {VERSION}\n"
    shown = run("amend", "--help")
    assert shown.returncode == 0
    assert "erasures" in shown.stdout


def test_the_wheel_contains_neither_torch_nor_our_other_packages(run: Run) -> None:
    code = f"import importlib.util as u; print([name for name in {NOT_THERE} if u.find_spec(name)])"
    assert run("python", "-c", code).stdout == "[]\n"


@pytest.mark.parametrize(
    "command",
    [
        "up",
        "demo",
        "service",
        "worker",
        "scheduler",
        "broker",
        "mlflow",
        "migrate",
        "backup x",
        "restore x",
        "bench scale",
    ],
)
def test_commands_that_need_the_server_report_it_in_one_line(run: Run, command: str) -> None:
    done = run("amend", *command.split())
    assert done.returncode == 1
    assert done.stdout == ""
    line, *more = done.stderr.splitlines()
    assert not more
    assert line.startswith("amend: This command requires Amend's server packages (core, service, ")
    assert "`make setup`" in line


def test_verification_names_the_extra_that_it_needs(run: Run) -> None:
    done = run("amend", "verify", "bundle.zip", "--key", "register.pem")
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith("amend: Verification requires cryptography, numpy, ")
    assert done.stderr.endswith("Run: pip install 'amend[verify]'\n")


@pytest.mark.parametrize("stack", ["sqlite"], indirect=True)
def test_the_clients_work_against_a_service(run: Run, stack: Stack) -> None:
    home = stack.environment["AMEND_HOME"]
    done = run("python", "-c", USE, "from-a-wheel", AMEND_PORT=str(stack.port), AMEND_HOME=home)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.split() == [f"e{i}" for i in range(10)]
    listed = run("amend", "models", "list", AMEND_PORT=str(stack.port), AMEND_HOME=home)
    assert "from-a-wheel" in listed.stdout
