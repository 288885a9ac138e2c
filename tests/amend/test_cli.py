"""The `amend` command: it answers at once, explains itself and needs little to start."""

from __future__ import annotations

import importlib.metadata
import re
import subprocess
import sys

import pytest
import typer
from typer.testing import CliRunner

from amend import cli

runner = CliRunner()


def test_version_is_that_of_the_distribution() -> None:
    result = runner.invoke(cli.app, ["--version"])
    assert result.exit_code == 0
    assert result.output.strip() == f"amend {importlib.metadata.version('amend')}"


def test_a_benchmark_calls_itself_by_its_command() -> None:
    python = [sys.executable, "-P", "-m", "bench", "erasure", "--help"]
    shown = subprocess.run(python, capture_output=True, text=True, check=True).stdout
    assert "Usage: amend bench erasure" in shown


def test_bench_help_lists_the_benchmarks() -> None:
    result = runner.invoke(cli.app, ["bench", "--help"])
    assert result.exit_code == 0
    assert "engine" in result.output
    assert "paper" in result.output
    assert "scale" in result.output


def test_without_a_command_the_help_is_shown() -> None:
    for arguments in ([], ["bench"]):
        result = runner.invoke(cli.app, arguments)
        assert result.exit_code == 2
        assert "Usage" in result.output


def test_unknown_command_is_refused() -> None:
    assert runner.invoke(cli.app, ["levitate"]).exit_code == 2


COMMANDS = {
    "models": "list show create delete policy change changes hold resume adapt retrain",
    "examples": "add show list remove accept discard",
    "jobs": "list show wait cancel",
    "versions": "list show promote compare weights",
    "comparisons": "list",
    "erasures": "ask file list show retry approve refuse refusal extend receipt replay",
    "receipts": "verify",
    "keys": "list create revoke",
    "webhooks": "list create test deliveries delete",
}
ALL = [(group, name) for group, names in COMMANDS.items() for name in names.split()]


@pytest.mark.parametrize(
    "command",
    [*ALL, ("predict",), ("audit",), ("demo",), ("up",), ("service",), ("migrate",), ("backup",), ("restore",)],
    ids=" ".join,
)
def test_help_of_every_command_has_an_example_of_it(command: tuple[str, ...]) -> None:
    result = runner.invoke(cli.app, [*command, "--help"])
    assert result.exit_code == 0
    assert f"amend {' '.join(command)}" in result.output.split("Example:")[1]


def test_ids_in_help_are_whole_as_the_service_has_them() -> None:
    tested = 0
    for group, name in ALL:
        command = typer.main.get_command(cli.app).commands[group].commands[name]  # type: ignore[attr-defined]
        # ids of examples are the caller's own
        if group != "examples" and any(parameter.metavar in ("ID", "JOB") for parameter in command.params):
            example = command.help.split("Example: ")[1].splitlines()[0]
            given = example.removeprefix(f"amend {group} {name} ").partition(" ")[0]
            whole = r"[0-9a-f]{12}" if group == "keys" else r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}"
            assert re.fullmatch(whole, given), example
            tested += 1
    assert tested >= 8


def test_command_starts_without_torch() -> None:
    code = "import sys, amend.cli; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_the_installed_command_prints_its_version() -> None:
    command = [sys.executable, "-c", "from amend.cli import main; main()", "--version"]
    result = subprocess.run(command, capture_output=True, text=True, check=True)
    assert result.stdout.startswith("amend ")


def test_flags_have_no_type_in_the_help() -> None:
    for words in ([], ["models"], ["models", "change"], ["up"]):
        assert "bool" not in CliRunner().invoke(cli.app, [*words, "--help"]).stdout
