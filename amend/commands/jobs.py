"""``amend jobs``: the work of the service, and waiting for it to end."""

from typing import Annotated, Any

import typer
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from amend.commands import output
from amend.commands.connection import After, Connection, Limit, command, fail
from amend.sansio import path

ENDED = frozenset({"succeeded", "failed", "cancelled"})
# Seconds of one long poll. It is answered when the job ends, so this is only how often the bar moves.
POLL = 1

app = typer.Typer(help="See, await and cancel the work of the service.", no_args_is_help=True)

JobId = Annotated[str, typer.Argument(metavar="JOB", help="The job's id.")]
Wait = Annotated[bool, typer.Option("--wait", help="Wait until the job has ended; fail if it does.")]

COLUMNS: output.Columns = {
    "id": "id",
    "model": "model",
    "kind": "kind",
    "state": "state",
    "progress": lambda job: f"{job.get('progress') or 0:.0%}",
    "from": "from_position",
    "to": "to_position",
    "version": "version",
    "created": output.moment("created_at"),
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
    answer = connection.client.get(path("jobs"), model=model, state=state, kind=kind, limit=limit, after=after)
    connection.show_list(answer, COLUMNS)


@command(app)
def show(connection: Connection, job: JobId) -> None:
    """Show a job, and why it failed if it did.

    Example: amend jobs show 4e1d7a90-8c35-4b62-a7f1-93d05c2be684
    """
    connection.show(connection.client.get(path("jobs", job)))


@command(app)
def wait(connection: Connection, job: JobId) -> None:
    """Wait until a job has ended; exit code 1 unless it succeeded.

    Example: amend jobs wait 4e1d7a90-8c35-4b62-a7f1-93d05c2be684 && amend versions list churn
    """
    finish(connection, connection.client.get(path("jobs", job)), wait=True)


@command(app)
def cancel(connection: Connection, job: JobId) -> None:
    """Cancel a job that has not ended.

    Example: amend jobs cancel 4e1d7a90-8c35-4b62-a7f1-93d05c2be684
    """
    connection.show(connection.client.post(path("jobs", job, "cancel")))


def finish(connection: Connection, job: dict[str, Any], wait: bool) -> None:
    """Show the job a command has started: at once, or when it has ended."""
    if not wait:
        connection.show(job)
        return
    job = follow(connection, job)
    connection.show(job)
    if job["state"] != "succeeded":
        error = job.get("error") or {}
        reason = f": {error.get('code')}: {error.get('detail')}" if error else ""
        fail(f"job {job['id']} {job['state']}{reason}")


def follow(connection: Connection, job: dict[str, Any]) -> dict[str, Any]:
    """The job when it has ended, with a bar on standard error until then."""
    columns = (TextColumn("{task.description}", markup=False), BarColumn(), TimeElapsedColumn())
    with Progress(*columns, console=output.console(stderr=True), transient=True) as bar:
        task = bar.add_task("", total=1.0)
        try:
            while True:
                phrase = job.get("message") or job["state"]
                bar.update(task, completed=job.get("progress") or 0.0, description=output.printable(phrase))
                if job["state"] in ENDED:
                    return job
                job = connection.client.get(path("jobs", job["id"]), wait=POLL)
        except KeyboardInterrupt:
            bar.stop()
            output.note(f"The job goes on. To wait for it again: amend jobs wait {job['id']}")
            raise typer.Exit(130) from None
