"""``amend subjects``: what is stored about a person, to look up and to hand over."""

from typing import Annotated

import typer

from amend.commands import output
from amend.commands.connection import Connection, command
from amend.responses import Holding
from amend.sansio import path

app = typer.Typer(help="What is stored about a person (GDPR Art. 15 and 20).", no_args_is_help=True)

COLUMNS: output.Columns[Holding] = {"model": lambda found: found.model, "examples": lambda found: found.examples}

Subject = Annotated[str, typer.Argument(help="The person, as named by the `subject` of their examples.")]


@command(app)
def lookup(connection: Connection, subject: Subject) -> None:
    """Show which models have how many examples about a person.

    Example: amend subjects lookup user-7
    """
    found = connection.client.look_up(subject)
    if connection.as_json:
        output.print_json(connection.answer)
    elif found:
        output.print_table(found, COLUMNS)
    else:
        typer.echo("No model has an example about this person.")


@command(app)
def export(
    connection: Connection,
    subject: Subject,
    to: Annotated[str, typer.Option("--to", metavar="FILE", help="Where to write; -: stdout.")] = "-",
) -> None:
    """Write all examples about a person, one JSON object a line.

    Example: amend subjects export user-7 --to user-7.ndjson
    """
    lines = connection.client.request("POST", path("subjects", "export"), json={"subject": subject}).content
    connection.save(lines, to)
