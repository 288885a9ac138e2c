"""``amend keys``: who may call the service, and for what."""

from typing import Annotated

import typer

from amend.commands import output
from amend.commands.connection import After, Connection, Limit, Yes, command, confirm
from amend.sansio import path

app = typer.Typer(help="Create and revoke the keys that callers of the service use.", no_args_is_help=True)

COLUMNS: output.Columns = {
    "id": "id",
    "name": "name",
    "scopes": lambda key: ", ".join(key["scopes"]),
    "models": lambda key: "all" if key.get("models") is None else ", ".join(key["models"]),
    "created": output.moment("created_at"),
    "last used": output.moment("last_used_at"),
}


@command(app, "list")
def list_(connection: Connection, limit: Limit = None, after: After = None) -> None:
    """List the keys, not their secrets.

    Example: amend keys list
    """
    connection.show_list(connection.client.get(path("keys"), limit=limit, after=after), COLUMNS)


@command(app)
def create(
    connection: Connection,
    name: Annotated[str, typer.Argument(help="Whose key it is, for the list.")],
    scope: Annotated[
        list[str], typer.Option("--scope", help="What it may do: read, ingest, erase, weights, admin. Can be repeated.")
    ],
    model: Annotated[
        list[str] | None, typer.Option("--model", help="Only for this model. Can be repeated. Default: all.")
    ] = None,
) -> None:
    """Create a key. This is the only time that it is shown.

    Example: amend keys create pipeline --scope read --scope ingest --model churn
    """
    answer = connection.client.post(path("keys"), {"name": name, "scopes": scope, "models": model or None})
    connection.show(answer)
    output.note("Keep the key now: the service stores a hash of it and cannot show it again.")


@command(app)
def revoke(
    connection: Connection,
    key_id: Annotated[str, typer.Argument(metavar="ID", help="The key's id.")],
    yes: Yes = False,
) -> None:
    """Revoke a key: it is refused from then on.

    Example: amend keys revoke 3f9a06c7d21e
    """
    confirm(f"Revoke the key {key_id}?", yes)
    connection.client.delete(path("keys", key_id))
    connection.say(None, f"Revoked {key_id}.")
