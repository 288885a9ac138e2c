"""``amend audit``: who did what, when and from where."""

from datetime import UTC, datetime
from typing import Annotated

from amend.client import Client
from amend.commands import output
from amend.commands.connection import After, Connection, Limit, fail, option
from amend.responses import AuditEntry

COLUMNS: output.Columns[AuditEntry] = {
    "at": lambda entry: output.format_time(entry.at),
    "actor": lambda entry: entry.actor.name or entry.actor.id,
    "action": lambda entry: entry.action,
    "model": lambda entry: entry.model,
    "version": lambda entry: entry.version,
    "erasure": lambda entry: entry.erasure,
    "client": lambda entry: entry.client,
    "counts": lambda entry: ", ".join(f"{name} {count}" for name, count in entry.counts.items()),
}


def audit(
    connection: Connection,
    actor: Annotated[str | None, option("--actor", "Only actions with this key, by its id.")] = None,
    action: Annotated[str | None, option("--action", "Only this action, such as examples_removed.")] = None,
    model: Annotated[str | None, option("--model", "Only actions on this model.")] = None,
    erasure: Annotated[str | None, option("--erasure", "Only actions on this erasure request, by its id.")] = None,
    since: Annotated[str | None, option("--since", "Only actions at or after this time (2026-03-01T09:00).")] = None,
    until: Annotated[str | None, option("--until", "Only actions before this time.")] = None,
    limit: Limit = None,
    after: After = None,
) -> None:
    """List who changed, exported or looked up personal data, newest first. Requires a key with the scope admin.

    Example: amend audit --model churn --action weights_downloaded --since 2026-03-01
    """
    connection.show_page(
        Client.audit,
        COLUMNS,
        limit,
        after,
        actor=actor,
        action=action,
        model=model,
        erasure=erasure,
        since=parse_time(since),
        until=parse_time(until),
    )


def parse_time(text: str | None) -> datetime | None:
    """
    >>> parse_time("2026-03-01").isoformat()
    '2026-03-01T00:00:00+00:00'
    """
    if text is None:
        return None
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        fail(f"{text!r} is not a date or time. Write 2026-03-01 or 2026-03-01T09:00.")
    return moment if moment.tzinfo else moment.replace(tzinfo=UTC)
