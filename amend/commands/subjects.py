"""``amend subjects``: what is stored about a person, to look up and to hand over."""

from typing import Annotated

import typer

from amend.commands import output
from amend.commands.connection import Connection, command
from amend.sansio import path

app = typer.Typer(help="What is stored about a person (GDPR Art. 15 and 20).", no_args_is_help=True)

Subject = Annotated[str, typer.Argument(help="The person, as named by the `subject` of their examples.")]


@command(app)
def lookup(connection: Connection, subject: Subject) -> None:
    """Show which models have how many examples about a person.

    Example: amend subjects lookup user-7
    """
    answer = connection.client.post(path("subjects", "lookup"), {"subject": subject})
    if connection.as_json:
        output.print_json(answer)
    elif answer["models"]:
        output.print_table(answer["models"], {"model": "model", "examples": "examples"})
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
