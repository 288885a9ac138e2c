"""Commands that start a process: it gets its options, its exit code is passed on, and it ends with us."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from client import cli
from client.commands import processes

runner = CliRunner()


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, ...]]:
    taken: list[tuple[str, ...]] = []

    def run_module(*arguments: str) -> int:
        taken.append(arguments)
        return 3

    monkeypatch.setattr(processes, "run_module", run_module)
    return taken


@pytest.mark.parametrize("benchmark", ["paper", "scale", "digits", "ingest"])
def test_benchmarks_get_all_their_options(benchmark: str, calls: list[tuple[str, ...]]) -> None:
    result = runner.invoke(cli.app, ["bench", benchmark, "--data", "some dir", "--help", "-x", "5"])
    assert calls == [("bench", benchmark, "--data", "some dir", "--help", "-x", "5")]
    assert result.exit_code == 3


@pytest.mark.parametrize(("command", "module"), [("service", "service"), ("migrate", "migrations")])
def test_command_runs_its_module(command: str, module: str, calls: list[tuple[str, ...]]) -> None:
    result = runner.invoke(cli.app, [command])
    assert calls == [(module,)]
    assert result.exit_code == 3


@pytest.mark.parametrize(("code", "expected"), [("0", 0), ("7", 7), ("os.kill(os.getpid(), 15)", 143)])
def test_exit_code_is_the_modules_own(
    code: str, expected: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "ends_somehow.py").write_text(f"import os, sys\nsys.exit({code})\n")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    assert processes.run_module("ends_somehow") == expected


def test_sigterm_ends_the_child_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "stays.py").write_text(
        "import signal, sys, time\n"
        "signal.signal(signal.SIGTERM, lambda *_: sys.exit(5))\n"
        "print('ready', flush=True)\n"
        "time.sleep(60)\n"
    )
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    code = "import sys; from client.commands.processes import run_module; sys.exit(run_module('stays'))"
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        assert parent.stdout.readline() == "ready\n"
        parent.send_signal(signal.SIGTERM)
        assert parent.wait(timeout=20) == 5
