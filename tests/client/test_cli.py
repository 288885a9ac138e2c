"""The `amend` command: it answers at once, hands benchmarks their options, and passes on how they ended."""

from __future__ import annotations

import importlib.metadata
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from client import cli

runner = CliRunner()


def test_version_is_that_of_the_distribution() -> None:
    result = runner.invoke(cli.app, ["--version"])
    assert result.exit_code == 0
    assert result.output.strip() == f"amend {importlib.metadata.version('amend')}"


def test_bench_help_lists_the_benchmarks() -> None:
    result = runner.invoke(cli.app, ["bench", "--help"])
    assert result.exit_code == 0
    assert "paper" in result.output
    assert "scale" in result.output


def test_nothing_asked_shows_the_help() -> None:
    for arguments in ([], ["bench"]):
        result = runner.invoke(cli.app, arguments)
        assert result.exit_code in (0, 2)
        assert "Usage" in result.output


def test_unknown_command_is_refused() -> None:
    assert runner.invoke(cli.app, ["levitate"]).exit_code == 2


@pytest.mark.parametrize("benchmark", ["paper", "scale"])
def test_benchmarks_get_all_their_options(benchmark: str, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[tuple[str, ...]] = []

    def run_module(*arguments: str) -> int:
        calls.append(arguments)
        return 3

    monkeypatch.setattr(cli, "run_module", run_module)
    result = runner.invoke(cli.app, ["bench", benchmark, "--data", "some dir", "--help", "-x", "5"])
    assert calls == [("bench", benchmark, "--data", "some dir", "--help", "-x", "5")]
    assert result.exit_code == 3


@pytest.mark.parametrize(("code", "expected"), [("0", 0), ("7", 7), ("os.kill(os.getpid(), 15)", 143)])
def test_exit_code_is_the_modules_own(
    code: str, expected: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "ends_somehow.py").write_text(f"import os, sys\nsys.exit({code})\n")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    assert cli.run_module("ends_somehow") == expected


def test_command_starts_without_torch() -> None:
    code = "import sys, client.cli; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_installed_command_answers() -> None:
    command = [sys.executable, "-c", "from client.cli import main; main()", "--version"]
    result = subprocess.run(command, capture_output=True, text=True, check=True)
    assert result.stdout.startswith("amend ")
