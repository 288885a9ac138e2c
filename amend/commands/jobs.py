"""``amend jobs``: the work of the service, and waiting for it to end."""

from typing import Annotated

import typer
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from amend.client import Client
from amend.commands import output
from amend.commands.connection import After, Connection, Limit, command
from amend.errors import JobFailed
from amend.responses import Job

# Seconds of one long poll. It is answered when the job ends, so this is only how often the bar moves.
POLL_SECONDS = 1

app = typer.Typer(help="See, await and cancel the work of the service.", no_args_is_help=True)

JobId = Annotated[str, typer.Argument(metavar="JOB", help="The job's id, or how it begins.")]
Wait = Annotated[bool, typer.Option("--wait", help="Wait until the job has ended; fail if it does.")]

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
    model: Annotated[str | None, typer.Option("--model", help="Only those of this model.")] = None,
    state: Annotated[
        str | None, typer.Option("--state", help="Only queued, running, succeeded, failed or cancelled ones.")
    ] = None,
    kind: Annotated[str | None, typer.Option("--kind", help="Only those of this kind: adapt, retrain ...")] = None,
    limit: Limit = None,
    after: After = None,
) -> None:
    """List jobs.

    Example: amend jobs list --model churn --state failed
    """
    connection.show_page(Client.jobs, COLUMNS, limit, after, model=model, state=state, kind=kind)


@command(app)
def show(connection: Connection, job: JobId) -> None:
    """Show a job, and why it failed if it did.

    Example: amend jobs show 4e1d7a90-8c35-4b62-a7f1-93d05c2be684
    """
    connection.client.job(job)
    connection.show(connection.answer)


@command(app)
def wait(connection: Connection, job: JobId) -> None:
    """Wait until a job has ended; exit code 1 unless it succeeded.

    Example: amend jobs wait 4e1d7a90-8c35-4b62-a7f1-93d05c2be684 && amend versions list churn
    """
    finish(connection, connection.client.job(job), wait=True)


@command(app)
def cancel(connection: Connection, job: JobId) -> None:
    """Cancel a job that has not ended.

    Example: amend jobs cancel 4e1d7a90-8c35-4b62-a7f1-93d05c2be684
    """
    connection.client.cancel(job)
    connection.show(connection.answer)


def finish(connection: Connection, job: Job, wait: bool) -> None:
    """Show the job a command has started: at once, or when it has ended."""
    if wait:
        job = follow(connection, job)
    connection.show(connection.answer)
    if wait and job.state != "succeeded":
        raise JobFailed(job)


def follow(connection: Connection, job: Job) -> Job:
    """The job when it has ended, with a bar on standard error until then."""
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
            output.note(f"The job goes on. To wait for it again: amend jobs wait {job.id}")
            raise typer.Exit(130) from None
