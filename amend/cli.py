"""The ``amend`` command: assembles the commands of `amend.commands`. The console script calls `main`."""

import importlib.metadata
from typing import Annotated

import typer

from amend.commands import erasures, examples, jobs, keys, models, predictions, processes, subjects, versions, webhooks
from amend.commands.connection import command
from amend.commands.plain_help import use_plain_help

app = typer.Typer(
    name="amend",
    help="Keep deployed models up to date, and make them forget data, without retraining.",
    no_args_is_help=True,
    add_completion=False,
)
app.add_typer(models.app, name="models")
app.add_typer(examples.app, name="examples")
command(app)(predictions.predict)
app.add_typer(versions.app, name="versions")
app.add_typer(versions.comparisons, name="comparisons")
app.add_typer(jobs.app, name="jobs")
app.add_typer(erasures.app, name="erasures")
app.add_typer(erasures.receipts, name="receipts")
app.add_typer(subjects.app, name="subjects")
app.add_typer(keys.app, name="keys")
app.add_typer(webhooks.app, name="webhooks")
app.command()(processes.up)
app.command()(processes.demo)
app.command()(processes.service)
app.command()(processes.worker)
app.command()(processes.scheduler)
app.command()(processes.broker)
app.command()(processes.mlflow)
app.command()(processes.migrate)
app.add_typer(processes.bench, name="bench")
use_plain_help(app)


def print_version(requested: bool) -> None:
    if requested:
        typer.echo(f"amend {importlib.metadata.version('amend')}")
        raise typer.Exit


@app.callback()
def amend(
    version: Annotated[
        bool, typer.Option("--version", callback=print_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    pass


def main() -> None:
    app(prog_name="amend")
