"""``amend restrictions``: data that is kept but not used (GDPR Art. 18)."""

from typing import Annotated

import typer

from amend.client import Client
from amend.commands import output
from amend.commands.connection import After, Connection, Limit, command, option
from amend.responses import Restriction

app = typer.Typer(
    help="List, show and lift restrictions of processing: data that is kept but not used.", no_args_is_help=True
)

RestrictionId = Annotated[str, typer.Argument(metavar="ID", help="Id of the restriction, or its first characters.")]

COLUMNS: output.Columns[Restriction] = {
    "id": lambda found: found.id,
    "state": lambda found: found.state,
    "reference": lambda found: found.reference,
    "restricted": lambda found: output.format_time(found.restricted_at),
    "lifted": lambda found: output.format_time(found.lifted_at),
    "examples": lambda found: sum(part.examples for part in found.models),
}


@command(app, "list")
def list_(
    connection: Connection,
    lifted: Annotated[bool, option("--lifted", "List lifted restrictions instead.")] = False,
    limit: Limit = None,
    after: After = None,
) -> None:
    """List the restrictions that are in effect, newest first.

    Example: amend restrictions list
    """
    connection.show_page(Client.restrictions, COLUMNS, limit, after, state="lifted" if lifted else None)


@command(app)
def show(connection: Connection, id: RestrictionId) -> None:
    """Show a restriction.

    Example: amend restrictions show 0b6f9c52-3d1e-4f7a-9c84-5e2a7d10f3b6
    """
    connection.client.restriction(id)
    show_response(connection)


@command(app)
def lift(
    connection: Connection,
    id: RestrictionId,
    reason: Annotated[str, option("--reason", "Reason, which the register records.")],
) -> None:
    """Lift a restriction: its examples become active again. Inform the person first (GDPR Art. 18(3)).

    Example: amend restrictions lift 0b6f9c52-3d1e-4f7a-9c84-5e2a7d10f3b6 --reason "the person confirmed the data"
    """
    connection.client.lift_restriction(id, reason)
    show_response(connection)


@command(app)
def letter(
    connection: Connection,
    id: RestrictionId,
    kind: Annotated[str, typer.Argument(metavar="KIND", help="restriction or lifting.")],
    html: Annotated[
        str | None, option("--html", "Write an HTML document to this file; - for standard output.", "FILE")
    ] = None,
) -> None:
    """Print a letter to the person about a restriction, as JSON or as an HTML page.

    Example: amend restrictions letter 0b6f9c52-3d1e-4f7a-9c84-5e2a7d10f3b6 lifting --html letter.html
    """
    if html is None:
        connection.client.letter(id, kind)
        output.print_json(connection.response)
    else:
        connection.save(connection.client.letter_page(id, kind).encode(), html)


def show_response(connection: Connection) -> None:
    """Print the restriction of the last response."""
    response = connection.response
    connection.show(response if connection.as_json else {k: v for k, v in response.items() if k != "trail"})
