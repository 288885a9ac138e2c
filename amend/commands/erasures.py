"""``amend erasures``: requests to erase a person from all models."""

import time
from collections import Counter
from collections.abc import Sequence
from typing import Annotated, Any

import typer

from amend.client import Client
from amend.commands import output
from amend.commands.arguments import read_lines, read_requests
from amend.commands.connection import After, Connection, Limit, Yes, command, confirm, option
from amend.commands.subjects import Subject
from amend.errors import ErasureFailed
from amend.responses import Erasure, Event, Page, Part, Spelling

# Seconds between two requests for the state of an erasure.
POLL_SECONDS = 1.0

app = typer.Typer(help="Erase people from all models, with due dates and receipts.", no_args_is_help=True)

ErasureId = Annotated[str, typer.Argument(metavar="ID", help="Id of the erasure, or its first characters.")]
RefusalReason = Annotated[
    str, option("--reason", "Reason for the refusal. It is stored, and the letter to the person states it.")
]
ExtensionReason = Annotated[str, option("--reason", "Reason for the extension. Deleted when the erasure is completed.")]
Hold = Annotated[
    bool | None,
    option(
        "--hold/--no-hold",
        "Deactivate the examples and wait for approval before erasing. Default: setting AMEND_ERASURE_HOLD.",
    ),
]

COLUMNS: output.Columns[Erasure] = {
    "id": lambda erasure: erasure.id,
    "state": lambda erasure: erasure.state,
    "received": lambda erasure: output.format_time(erasure.received_at),
    "due": lambda erasure: output.format_time(erasure.due_at),
    "overdue": lambda erasure: erasure.overdue,
    "completed": lambda erasure: format_end(erasure),
    "models": lambda erasure: len(erasure.models),
    "examples": lambda erasure: sum(part.examples for part in erasure.models),
}
TRAIL_COLUMNS: output.Columns[Event] = {
    "event": lambda event: event.action,
    "by": lambda event: event.name or event.by,
    "at": lambda event: output.format_time(event.at),
}
PART_COLUMNS: output.Columns[Part] = {
    "model": lambda part: part.model,
    "state": lambda part: part.state,
    "examples": lambda part: part.examples,
    "method": lambda part: part.method,
    "version": lambda part: part.version,
    "bound": lambda part: part.bound,
    "error": lambda part: f"{part.error.code}: {part.error.detail}" if part.error else None,
}


@command(app)
def ask(
    connection: Connection,
    subject: Subject,
    aliases: Annotated[
        list[str] | None, option("--alias", "Another identifier of the same person. Can be repeated.", "SUBJECT")
    ] = None,
    reason: Annotated[str | None, option("--reason", "Note for your records. Deleted when the erasure ends.")] = None,
    received_at: Annotated[
        str | None, option("--received-at", "When it was received, such as 2025-03-01T09:00:00Z (UTC). Default: now.")
    ] = None,
    hold: Hold = None,
    wait: Annotated[
        bool,
        option("--wait", "Wait until it finishes or needs a decision; exit with status 1 if not completed."),
    ] = False,
    yes: Yes = False,
) -> None:
    """Request the erasure of a person from all models. If a request for the person is already open, it is returned.

    Example: amend erasures ask user-7 --received-at 2025-03-01T09:00:00Z --wait
    """

    def question() -> str:
        found: Counter[str] = Counter()
        for name in dict.fromkeys((subject, *(aliases or ()))):
            found.update({one.model: one.examples for one in connection.client.look_up(name)})
        named = ", ".join(f"{count} in {model}" for model, count in found.items()) or "none"
        return f"Erase the examples of {subject} ({named})? This cannot be undone."

    confirm(question, yes or bool(hold))
    erasure = connection.client.erase(subject, aliases=aliases or (), reason=reason, received_at=received_at, hold=hold)
    if wait:
        erasure = follow(connection, erasure)
    show_erasure(connection, erasure)
    if not erasure.models and not connection.as_json:
        output.note(
            "No model has examples with this identifier. Check the spelling, then approve or refuse the request."
        )
    if erasure.near_matches and not connection.as_json:
        output.note(f"Not included: {describe_spellings(erasure.near_matches)}. To add them: --alias")
    if wait and erasure.state != "completed":
        raise ErasureFailed(erasure)


@command(app, "list")
def list_(
    connection: Connection,
    state: Annotated[
        str | None,
        option(
            "--state",
            "One state, such as unmatched, held, failed or completed. Default: all.",
        ),
    ] = None,
    overdue: Annotated[bool, option("--overdue", "Only open erasures past their due date.")] = False,
    limit: Limit = None,
    after: After = None,
) -> None:
    """List erasures, newest first.

    Example: amend erasures list --overdue
    """
    connection.show_page(Client.erasures, COLUMNS, limit, after, state=state, overdue=overdue or None)


@command(app)
def show(connection: Connection, id: ErasureId) -> None:
    """Show an erasure and its progress in each model.

    Example: amend erasures show 0b6f9c52-3d1e-4f7a-9c84-5e2a7d10f3b6
    """
    show_erasure(connection, connection.client.erasure(id))


@command(app)
def retry(
    connection: Connection,
    id: Annotated[
        str | None, typer.Argument(metavar="[ID]", help="Id of the erasure. Default: all failed erasures.")
    ] = None,
) -> None:
    """Retry a failed erasure, or all failed erasures.

    Example: amend erasures retry
    """
    if id is not None:
        show_erasure(connection, connection.client.retry_erasure(id))
        return
    count = len(connection.client.retry_erasures().retried)
    connection.say(connection.response, f"Retrying {count} {'erasure' if count == 1 else 'erasures'}.")


@command(app)
def file(
    connection: Connection,
    source: Annotated[
        str,
        typer.Argument(
            metavar="FILE",
            help="One subject per line, - for standard input; or a .csv file with the columns subject, aliases "
            "(separated by |), received, reference and reason.",
        ),
    ],
    hold: Hold = None,
    yes: Yes = False,
) -> None:
    """Request the erasure of up to 1000 people at once. Either all requests are accepted, or none.

    Example: amend erasures file people.txt --hold
    """
    people: list[Any] = read_requests(source) if source.lower().endswith(".csv") else read_lines(source)
    confirm(f"Erase the examples of {len(people)} people from all models? This cannot be undone.", yes or bool(hold))
    connection.show_list(Page(connection.client.erase_all(people, hold=hold)), COLUMNS)


@command(app)
def approve(connection: Connection, id: ErasureId, yes: Yes = False) -> None:
    """Approve a held erasure, or complete one that matched no example.

    Example: amend erasures approve 0b6f9c52-3d1e-4f7a-9c84-5e2a7d10f3b6
    """

    def question() -> str:
        models = connection.client.erasure(id).models
        named = ", ".join(f"{one.examples} in {one.model}" for one in models) or "none"
        if not models:
            return "Complete the request with a receipt that no example was found under its identifiers?"
        return f"Erase the examples of this person ({named})? This cannot be undone."

    confirm(question, yes)
    show_erasure(connection, connection.client.approve_erasure(id))


@command(app)
def hold(connection: Connection, id: ErasureId) -> None:
    """Hold an erasure in progress until it is approved, refused or withdrawn, as long as nothing has been deleted.

    Example: amend erasures hold 0b6f9c52-3d1e-4f7a-9c84-5e2a7d10f3b6
    """
    show_erasure(connection, connection.client.hold_erasure(id))


@command(app)
def withdraw(connection: Connection, id: ErasureId) -> None:
    """End a request that the person has withdrawn. Its examples become active again, and the models are adapted.

    Example: amend erasures withdraw 0b6f9c52-3d1e-4f7a-9c84-5e2a7d10f3b6
    """
    show_erasure(connection, connection.client.withdraw_erasure(id))


@command(app)
def refuse(connection: Connection, id: ErasureId, reason: RefusalReason) -> None:
    """Refuse an erasure request. Its examples become active again, and the models are adapted.

    Example: amend erasures refuse 0b6f9c52-3d1e-4f7a-9c84-5e2a7d10f3b6 --reason "manifestly unfounded"
    """
    show_erasure(connection, connection.client.refuse_erasure(id, reason))


@command(app)
def extend(connection: Connection, id: ErasureId, reason: ExtensionReason) -> None:
    """Extend the due date by two months, once and within the first month (GDPR Art. 12(3)).

    You must inform the person and state the reason.

    Example: amend erasures extend 0b6f9c52-3d1e-4f7a-9c84-5e2a7d10f3b6 --reason "500 requests came at once"
    """
    show_erasure(connection, connection.client.extend_erasure(id, reason))


@command(app)
def replay(connection: Connection) -> None:
    """After a restore from a backup, repeat all later actions that concern people, as the store recorded them.

    `amend restore` does this itself.

    Example: amend erasures replay
    """
    replayed = connection.client.replay_erasures()
    counts = {
        "receipts restored": replayed.receipts,
        "requests restored": len(replayed.requests),
        "erasures repeated": len(replayed.erasures),
        "examples removed": replayed.removals,
        "examples corrected": replayed.corrections,
        "examples removed because their correction was lost": replayed.outdated,
        "models deleted": len(replayed.models),
    }
    done = ", ".join(f"{count} {what}" for what, count in counts.items() if count) or "nothing was missing"
    strays = "".join(f"\nIgnored a stray file in the store: {name}" for name in replayed.strays)
    connection.say(connection.response, f"Replayed: {done}.{strays}")


def show_erasure(connection: Connection, erasure: Erasure) -> None:
    """Print the erasure of the last response."""
    if connection.as_json:
        output.print_json(connection.response)
        return
    output.print_details(
        {name: value for name, value in connection.response.items() if name not in ("models", "trail")}
    )
    if erasure.trail:
        typer.echo()
        output.print_table(erasure.trail, TRAIL_COLUMNS)
    if erasure.models:
        typer.echo()
        output.print_table(erasure.models, PART_COLUMNS)


def follow(connection: Connection, erasure: Erasure) -> Erasure:
    """Wait until the erasure has ended or needs a decision, and return it. Prints each new state on standard error."""
    printed = None
    try:
        while True:
            states = ", ".join([erasure.state, *(f"{part.model}: {part.state}" for part in erasure.models)])
            if states != printed:
                output.note(states)
                printed = states
            if erasure.ended or erasure.state in ("held", "unmatched"):
                return erasure
            time.sleep(POLL_SECONDS)
            erasure = connection.client.erasure(erasure.id)
    except KeyboardInterrupt:
        output.note(f"The erasure continues. To see its state: amend erasures show {erasure.id}")
        raise typer.Exit(130) from None


def describe_spellings(spellings: Sequence[Spelling]) -> str:
    """Similar spellings of an identifier, with the number of examples under each."""
    return ", ".join(f"{one.subject!r} (examples: {one.examples})" for one in spellings)


def format_end(erasure: Erasure) -> str | None:
    """When an erasure was completed, and whether it was late."""
    at = output.format_time(erasure.completed_at)
    return f"{at}, late" if at and erasure.late else at
