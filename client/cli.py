"""The ``amend`` command, as installed by the console script of the same name.

Benchmarks run in a process of their own, and their options are defined where the benchmarks are:
this command hands over what it was given and ends with the exit code it gets back.
"""

import importlib.metadata
import subprocess
import sys
from typing import Annotated

import typer

# `--help` is not ours to answer either: only the benchmark knows its options.
PASS_THROUGH = {"allow_extra_args": True, "ignore_unknown_options": True, "help_option_names": []}

app = typer.Typer(
    name="amend",
    help="Keep a deployed model current, and make it forget, without retraining it.",
    no_args_is_help=True,
    add_completion=False,
)
bench = typer.Typer(
    help="Measure Amend against full retraining. Each benchmark lists its options with --help.",
    no_args_is_help=True,
)
app.add_typer(bench, name="bench")


def print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"amend {importlib.metadata.version('amend')}")
        raise typer.Exit


@app.callback()
def amend(
    version: Annotated[
        bool,
        typer.Option("--version", callback=print_version, is_eager=True, help="Print the version and exit."),
    ] = False,
) -> None:
    pass


@bench.command(context_settings=PASS_THROUGH)
def paper(context: typer.Context) -> None:
    """Repeat the tasks of the K-priors paper: accuracy, distance to a retrain, and cost."""
    raise typer.Exit(run_module("bench", "paper", *context.args))


@bench.command(context_settings=PASS_THROUGH)
def scale(context: typer.Context) -> None:
    """Time one adaptation as the number of past examples grows."""
    raise typer.Exit(run_module("bench", "scale", *context.args))


@bench.command(context_settings=PASS_THROUGH)
def digits(context: typer.Context) -> None:
    """A tour in a few seconds: every task on scikit-learn's digits, adapted against retrained."""
    raise typer.Exit(run_module("bench", "digits", *context.args))


def run_module(module: str, *arguments: str) -> int:
    """Run ``python -m module arguments...`` and return its exit code."""
    # -P: without it, a folder named like the module in the user's directory would be run instead.
    with subprocess.Popen([sys.executable, "-P", "-m", module, *arguments]) as process:
        while True:
            try:
                code = process.wait()
                break
            except KeyboardInterrupt:
                # The terminal sends Ctrl-C to both processes; the child decides how to end.
                continue
    # A negative code is the signal that ended the child; shells report it as 128 + signal.
    return code if code >= 0 else 128 - code


def main() -> None:
    app(prog_name="amend")
