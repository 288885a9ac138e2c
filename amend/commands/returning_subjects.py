"""``amend examples accept`` and ``discard``: decide about data of erased people that has returned."""

from typing import Annotated

import typer

from amend.commands.connection import Connection, Yes, confirm
from amend.commands.jobs import Wait
from amend.commands.models import Name, follow_up

Ids = Annotated[list[str] | None, typer.Argument(metavar="IDS", help="Ids of the examples. Default: all.")]


def accept(connection: Connection, model: Name, ids: Ids = None, wait: Wait = False, yes: Yes = False) -> None:
    """Accept quarantined examples about people whose data was erased, and adapt the model to them.

    Example: amend examples accept churn a1 --wait
    """
    confirm(f"Use data about people whose data was erased to train {model}?", yes)
    decided = connection.client.accept_returned(model, ids or None)
    follow_up(connection, decided, wait)


def discard(connection: Connection, model: Name, ids: Ids = None) -> None:
    """Discard quarantined examples about people whose data was erased.

    Example: amend examples discard churn
    """
    connection.client.discard_returned(model, ids or None)
    connection.show(connection.response)
