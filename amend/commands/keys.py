"""``amend keys``: create, list and revoke API keys."""

import re
from datetime import datetime, timedelta
from typing import Annotated

import typer

from amend.client import Client
from amend.commands import output
from amend.commands.connection import After, Connection, Limit, Yes, command, confirm, option
from amend.responses import Key

app = typer.Typer(help="Create, list and revoke API keys.", no_args_is_help=True)

COLUMNS: output.Columns[Key] = {
    "id": lambda key: key.id,
    "name": lambda key: key.name,
    "scopes": lambda key: ", ".join(key.scopes),
    "models": lambda key: "all" if key.models is None else ", ".join(key.models),
    "created": lambda key: output.format_time(key.created_at),
    "expires": lambda key: output.format_time(key.expires_at),
    "last used": lambda key: output.format_time(key.last_used_at),
}


@command(app, "list")
def list_(connection: Connection, limit: Limit = None, after: After = None) -> None:
    """List the API keys, without their secrets.

    Example: amend keys list
    """
    connection.show_page(Client.keys, COLUMNS, limit, after)


@command(app)
def create(
    connection: Connection,
    name: Annotated[str, typer.Argument(help="Name that identifies the key in lists.")],
    scope: Annotated[
        list[str], option("--scope", "read, ingest, erase, approve, analyse, weights or admin. Can be repeated.")
    ],
    model: Annotated[list[str] | None, option("--model", "Model to allow. Can be repeated. Default: all.")] = None,
    expires: Annotated[str | None, option("--expires", "12h, 90d or a date (2027-01-31). Default: never.")] = None,
    quota: Annotated[
        list[str] | None,
        option("--quota", "Limit, such as rows_per_day=10000. Can be repeated. Default: none."),
    ] = None,
) -> None:
    """Create an API key. It is shown only once.

    Example: amend keys create pipeline --scope read --scope ingest --model churn --expires 90d
    """
    connection.client.create_key(name, scope, model or None, parse_expiry(expires), parse_quota(quota or []))
    connection.show(connection.response)
    output.note("Store the key now: the service keeps only a hash and cannot show it again.")


def parse_quota(pairs: list[str]) -> dict[str, float] | None:
    """
    >>> parse_quota(["rows_per_day=10000", "requests_per_second=0.5"])
    {'rows_per_day': 10000, 'requests_per_second': 0.5}
    """
    quota: dict[str, float] = {}
    for pair in pairs:
        name, _, number = pair.partition("=")
        try:
            quota[name] = float(number) if "." in number else int(number)
        except ValueError:
            raise typer.BadParameter("Expected NAME=NUMBER, such as models=3.", param_hint="--quota") from None
    return quota or None


def parse_expiry(text: str | None) -> datetime | timedelta | None:
    """
    >>> parse_expiry("90d"), parse_expiry("2027-01-31")
    (datetime.timedelta(days=90), datetime.datetime(2027, 1, 31, 0, 0))
    """
    if text is None:
        return None
    if found := re.fullmatch(r"(\d{1,6})([mhd])", text):
        unit = {"m": "minutes", "h": "hours", "d": "days"}[found[2]]
        return timedelta(**{unit: int(found[1])})
    try:
        return datetime.fromisoformat(text)
    except ValueError:
        raise typer.BadParameter("Expected 12h, 90d or a date such as 2027-01-31.", param_hint="--expires") from None


@command(app)
def revoke(
    connection: Connection,
    key_id: Annotated[str, typer.Argument(metavar="ID", help="Id of the key.")],
    yes: Yes = False,
) -> None:
    """Revoke an API key with immediate effect.

    Example: amend keys revoke 3f9a06c7d21e
    """
    confirm(f"Revoke the API key {key_id}?", yes)
    connection.client.revoke_key(key_id)
    connection.say(None, f"Revoked {key_id}.")
