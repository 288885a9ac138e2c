"""``amend jobs``: list, wait for and cancel jobs."""

from typing import Annotated

import typer
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from amend.client import Client
from amend.commands import output
from amend.commands.connection import After, Connection, Limit, command, option
from amend.errors import JobFailed
from amend.responses import Job

# Seconds of one long poll, which ends early when the job ends: how often the progress bar is updated.
POLL_SECONDS = 1

app = typer.Typer(help="List, wait for and cancel jobs.", no_args_is_help=True)

JobId = Annotated[str, typer.Argument(metavar="JOB", help="Id of the job, or its first characters.")]
Wait = Annotated[bool, typer.Option("--wait", help="Wait for the job to finish; exit with status 1 if it failed.")]

COLUMNS: output.Columns[Job] = {
    "id": lambda job: job.id,
    "model": lambda job: job.model,
    "kind": lambda job: job.kind,
    "state": lambda job: job.state,
    "progress": lambda job: f"{job.progress:.0%}",
    "from": lambda job: job.from_position,
    "to": lambda job: job.to_position,
    "version": lambda job: job.version,
    "created": lambda job: output.format_time(job.created_at),
}


@command(app, "list")
def list_(
    connection: Connection,
    model: Annotated[str | None, option("--model", "Only jobs of this model.")] = None,
    state: Annotated[str | None, option("--state", "queued, running, succeeded, failed or cancelled.")] = None,
    kind: Annotated[str | None, option("--kind", "adapt, retrain, erase, rebuild or analyse.")] = None,
    limit: Limit = None,
    after: After = None,
) -> None:
    """List jobs, newest first.

    Example: amend jobs list --model churn --state failed
    """
    connection.show_page(Client.jobs, COLUMNS, limit, after, model=model, state=state, kind=kind)


@command(app)
def show(connection: Connection, job: JobId) -> None:
    """Show a job, with its error if it failed.

    Example: amend jobs show 4e1d7a90-8c35-4b62-a7f1-93d05c2be684
    """
    connection.client.job(job)
    connection.show(connection.response)


@command(app)
def wait(connection: Connection, job: JobId) -> None:
    """Wait for a job to finish; exit with status 1 unless it succeeded.

    Example: amend jobs wait 4e1d7a90-8c35-4b62-a7f1-93d05c2be684 && amend versions list churn
    """
    finish(connection, connection.client.job(job), wait=True)


@command(app)
def cancel(connection: Connection, job: JobId) -> None:
    """Cancel a queued or running job.

    Example: amend jobs cancel 4e1d7a90-8c35-4b62-a7f1-93d05c2be684
    """
    connection.client.cancel(job)
    connection.show(connection.response)


def finish(connection: Connection, job: Job, wait: bool) -> None:
    """Print the job that a command has started, at once or when it has finished."""
    if wait:
        job = follow(connection, job)
    connection.show(connection.response)
    if wait and job.state != "succeeded":
        raise JobFailed(job)


def follow(connection: Connection, job: Job) -> Job:
    """Wait for the job to finish, with a progress bar on standard error, and return it."""
    columns = (TextColumn("{task.description}", markup=False), BarColumn(), TimeElapsedColumn())
    with Progress(*columns, console=output.console(stderr=True), transient=True) as bar:
        task = bar.add_task("", total=1.0)
        try:
            while True:
                bar.update(task, completed=job.progress, description=output.printable(job.message or job.state))
                if job.ended:
                    return job
                job = connection.client.job(job.id, wait=POLL_SECONDS)
        except KeyboardInterrupt:
            bar.stop()
            output.note(f"The job continues. To wait for it again: amend jobs wait {job.id}")
            raise typer.Exit(130) from None
