"""Commands that start a process: it gets its options, its exit code is passed on, and it ends with us."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from amend import cli
from amend.commands import processes

runner = CliRunner()


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, ...]]:
    taken: list[tuple[str, ...]] = []

    def run_module(*arguments: str) -> None:
        taken.append(arguments)
        raise SystemExit(3)

    monkeypatch.setattr(processes, "run_module", run_module)
    return taken


@pytest.mark.parametrize("benchmark", ["engine", "paper", "scale", "ingest"])
def test_benchmarks_get_all_their_options(benchmark: str, calls: list[tuple[str, ...]]) -> None:
    result = runner.invoke(cli.app, ["bench", benchmark, "--data", "some dir", "--help", "-x", "5"])
    assert calls == [("bench", benchmark, "--data", "some dir", "--help", "-x", "5")]
    assert result.exit_code == 3


@pytest.mark.parametrize(("command", "module"), [("service", "service"), ("migrate", "migrations")])
def test_command_runs_its_module(command: str, module: str, calls: list[tuple[str, ...]]) -> None:
    result = runner.invoke(cli.app, [command])
    assert calls == [(module,)]
    assert result.exit_code == 3


@pytest.mark.parametrize(("number", "expected"), [(signal.SIGTERM, 5), (signal.SIGINT, 6), (signal.SIGKILL, -9)])
def test_the_command_is_the_process_it_runs(
    number: signal.Signals, expected: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "stays.py").write_text(
        "import os, signal, sys, time\n"
        "signal.signal(signal.SIGTERM, lambda *_: sys.exit(5))\n"
        "signal.signal(signal.SIGINT, lambda *_: sys.exit(6))\n"
        "print(os.getpid(), *sys.argv[1:], flush=True)\n"
        "time.sleep(60)\n"
    )
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    code = "from amend.commands.processes import run_module; run_module('stays', '--an', 'option')"
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == f"{process.pid} --an option\n"
        process.send_signal(number)
        assert process.wait(timeout=20) == expected
