"""The ``amend`` command: assembles the commands of `amend.commands`. The console script calls `main`."""

import importlib.metadata
from typing import Annotated

import typer

from amend.commands import (
    analyses,
    audit,
    encoders,
    erasure_documents,
    erasures,
    examples,
    jobs,
    keys,
    model_quality,
    models,
    predictions,
    processes,
    register,
    restrictions,
    returning_subjects,
    subjects,
    verify,
    versions,
    webhooks,
)
from amend.commands.connection import command
from amend.commands.plain_help import use_plain_help

app = typer.Typer(
    name="amend",
    help="Keep deployed models up to date, and make them forget data, without retraining.",
    no_args_is_help=True,
    add_completion=False,
)
app.add_typer(models.app, name="models")
command(models.app)(model_quality.quality)
command(models.app)(model_quality.drift)
app.add_typer(examples.app, name="examples")
command(examples.app)(returning_subjects.accept)
command(examples.app)(returning_subjects.discard)
command(app)(predictions.predict)
app.add_typer(versions.app, name="versions")
app.add_typer(versions.comparisons, name="comparisons")
app.add_typer(analyses.app, name="analyses")
app.add_typer(jobs.app, name="jobs")
app.add_typer(erasures.app, name="erasures")
command(erasures.app)(erasure_documents.receipt)
command(erasures.app)(erasure_documents.notices)
command(erasures.app)(erasure_documents.refusal)
command(erasures.app)(erasure_documents.bundle)
command(erasures.app)(erasure_documents.letter)
command(erasures.app)(erasure_documents.statistics)
command(erasures.app)(erasure_documents.register)
app.add_typer(register.receipts, name="receipts")
app.add_typer(register.app, name="register")
app.add_typer(subjects.app, name="subjects")
app.add_typer(restrictions.app, name="restrictions")
app.add_typer(encoders.app, name="encoders")
app.add_typer(keys.app, name="keys")
app.add_typer(webhooks.app, name="webhooks")
app.command()(verify.verify)
command(app)(audit.audit)
app.command()(processes.up)
app.command()(processes.demo)
app.command()(processes.prove)
app.command()(processes.service)
app.command()(processes.worker)
app.command()(processes.scheduler)
app.command()(processes.broker)
app.command()(processes.mlflow)
app.command()(processes.migrate)
app.command()(processes.backup)
app.command()(processes.restore)
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
