"""``amend subjects``: look up and export the data stored about a person."""

from typing import Annotated

import typer

from amend.commands import output
from amend.commands.connection import Connection, command
from amend.requests import path
from amend.responses import Holding

app = typer.Typer(help="Look up and export the data stored about a person (GDPR Art. 15 and 20).", no_args_is_help=True)

COLUMNS: output.Columns[Holding] = {"model": lambda found: found.model, "examples": lambda found: found.examples}

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
        typer.echo("No model has examples of this person.")


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
