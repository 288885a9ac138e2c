"""``amend subjects``: look up, export, correct and restrict the data stored about a person."""

from typing import Annotated

import typer

from amend.commands import output, restrictions
from amend.commands.arguments import parse_json
from amend.commands.connection import Connection, command, option
from amend.requests import path
from amend.responses import Erasure, Holding

app = typer.Typer(
    help="Look up, export, correct and restrict the data stored about a person (GDPR Art. 15, 16, 18 and 20).",
    no_args_is_help=True,
)

COLUMNS: output.Columns[Holding] = {"model": lambda found: found.model, "examples": lambda found: found.examples}

REQUEST_COLUMNS: output.Columns[Erasure] = {
    "id": lambda found: found.id,
    "state": lambda found: found.state,
    "reference": lambda found: found.reference,
    "received": lambda found: output.format_time(found.received_at),
    "receipt": lambda found: found.receipt,
}
Subject = Annotated[str, typer.Argument(help="The person: the `subject` of their examples.")]


@command(app)
def lookup(connection: Connection, subject: Subject) -> None:
    """Show how many examples of a person each model has.

    Example: amend subjects lookup user-7
    """
    found = connection.client.look_up(subject)
    if connection.as_json:
        output.print_json(connection.response)
    elif found:
        output.print_table(found, COLUMNS)
    else:
        typer.echo("No model has examples with this identifier.")
    if (similar := connection.response["near_matches"]) and not connection.as_json:
        named = ", ".join(f"{one['subject']!r} (examples: {one['examples']})" for one in similar)
        output.note(f"Similar spellings with examples: {named}.")


@command(app)
def export(
    connection: Connection,
    subject: Subject,
    to: Annotated[str, typer.Option("--output", "-o", metavar="FILE", help="Output file.")] = "-",
) -> None:
    """Export all examples of a person, one JSON object per line. Default output: -, standard output.

    Example: amend subjects export user-7 --output user-7.ndjson
    """
    lines = connection.client.request("POST", path("subjects", "export"), json={"subject": subject}).content
    connection.save(lines, to)


@command(app)
def report(
    connection: Connection,
    subject: Subject,
    to: Annotated[str, typer.Option("--output", "-o", metavar="FILE", help="Output file.")] = "-",
) -> None:
    """Write a report for a person about the data that is stored about them, as an HTML page (GDPR Art. 15).

    Example: amend subjects report user-7 --output report.html
    """
    connection.save(connection.client.access_report(subject).encode(), to)


@command(app)
def requests(connection: Connection, subject: Subject) -> None:
    """Find the requests from a person, open or not, and their receipts.

    Example: amend subjects requests user-7
    """
    found = connection.client.find_requests(subject)
    if connection.as_json:
        output.print_json(connection.response)
    elif not found.erasures and not found.restrictions:
        typer.echo("This person has made no requests.")
    else:
        output.print_table(found.erasures, REQUEST_COLUMNS)
        if found.restrictions:
            typer.echo()
            output.print_table(found.restrictions, restrictions.COLUMNS)


@command(app)
def correct(
    connection: Connection,
    subject: Subject,
    model: Annotated[str, typer.Argument(help="Name of the model.")],
    id: Annotated[str, typer.Argument(metavar="EXAMPLE", help="Id of the example.")],
    x: Annotated[
        str | None, option("--x", "New input as JSON; for a table, only the columns to change.", "JSON")
    ] = None,
    y: Annotated[str | None, option("--y", "New label as JSON.", "JSON")] = None,
    reference: Annotated[str | None, option("--reference", "Your own number for the request.")] = None,
) -> None:
    """Correct an example about a person, and adapt the model (GDPR Art. 16).

    Example: amend subjects correct user-7 churn a1 --x '{"age": 41}'
    """
    given = {name: parse_json(text, name) for name, text in (("x", x), ("y", y)) if text is not None}
    connection.client.correct(subject, model, id, reference=reference, **given)
    connection.show(connection.response)


@command(app)
def restrict(
    connection: Connection,
    subject: Subject,
    reason: Annotated[
        str | None, option("--reason", "Note for your records. Deleted when the restriction is lifted.")
    ] = None,
    received_at: Annotated[
        str | None, option("--received-at", "When it was received, such as 2025-03-01T09:00:00Z (UTC). Default: now.")
    ] = None,
    reference: Annotated[str | None, option("--reference", "Your own number for the request.")] = None,
) -> None:
    """Restrict the processing of a person's data (GDPR Art. 18): keep it, but do not use it until this is lifted.

    Example: amend subjects restrict user-7 --reason "contests the data"
    """
    connection.client.restrict(subject, reason=reason, received_at=received_at, reference=reference)
    restrictions.show_response(connection)
