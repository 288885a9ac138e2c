"""``amend erasures`` and ``amend receipts``: requests to erase a person from all models, and their receipts."""

import time
from collections.abc import Callable
from typing import Annotated

import typer

from amend.client import Client
from amend.commands import output
from amend.commands.arguments import read_lines
from amend.commands.connection import After, Connection, Limit, Yes, command, confirm, fail, option
from amend.commands.subjects import Subject
from amend.errors import ErasureFailed
from amend.responses import Erasure, Event, Flaw, Page, Part

# Seconds between two requests for the state of an erasure.
POLL_SECONDS = 1.0

app = typer.Typer(help="Erase people from all models, with due dates and receipts.", no_args_is_help=True)
receipts = typer.Typer(help="Verify the receipts of erasures.", no_args_is_help=True)

ErasureId = Annotated[str, typer.Argument(metavar="ID", help="Id of the erasure, or its first characters.")]
RefusalReason = Annotated[str, option("--reason", "Reason of the refusal. It is stored and told to the person.")]
ExtensionReason = Annotated[str, option("--reason", "Reason of the extension. Deleted when the erasure is completed.")]
Hold = Annotated[
    bool | None,
    option(
        "--hold/--no-hold",
        "Deactivate the examples and wait for approval before erasing. Default: setting AMEND_ERASURE_HOLD.",
    ),
]
Html = Annotated[str | None, option("--html", "Write an HTML document to this file; - for standard output.", "FILE")]

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
    "by": lambda event: event.by,
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
FLAW_COLUMNS: output.Columns[Flaw] = {"receipt": lambda flaw: flaw.number, "problem": lambda flaw: flaw.problem}


@command(app)
def ask(
    connection: Connection,
    subject: Subject,
    reason: Annotated[str | None, option("--reason", "Note for your records. Deleted when the erasure ends.")] = None,
    received_at: Annotated[
        str | None, option("--received-at", "When it was received, such as 2025-03-01T09:00:00Z (UTC). Default: now.")
    ] = None,
    hold: Hold = None,
    wait: Annotated[
        bool, option("--wait", "Wait for the erasure to finish, unless held; exit with status 1 if not completed.")
    ] = False,
    yes: Yes = False,
) -> None:
    """Request the erasure of a person from all models. If a request for the person is already open, it is returned.

    Example: amend erasures ask user-7 --received-at 2025-03-01T09:00:00Z --wait
    """

    def question() -> str:
        found = connection.client.look_up(subject)
        named = ", ".join(f"{one.examples} in {one.model}" for one in found) or "none"
        return f"Erase the examples of {subject} ({named})? This cannot be undone."

    confirm(question, yes or bool(hold))
    erasure = connection.client.erase(subject, reason=reason, received_at=received_at, hold=hold)
    if wait:
        erasure = follow(connection, erasure)
    show_erasure(connection, erasure)
    if not erasure.models and not connection.as_json:
        output.note("No model has examples of this person.")
    if wait and erasure.state != "completed":
        raise ErasureFailed(erasure)


@command(app, "list")
def list_(
    connection: Connection,
    state: Annotated[
        str | None,
        option("--state", "held, received, adapting, verifying, purging, completed, failed or refused. Default: all."),
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
    source: Annotated[str, typer.Argument(metavar="FILE", help="One subject per line; - for standard input.")],
    hold: Hold = None,
    yes: Yes = False,
) -> None:
    """Request the erasure of up to 1000 people at once. Either all requests are accepted, or none.

    Example: amend erasures file people.txt --hold
    """
    people = read_lines(source)
    confirm(f"Erase the examples of {len(people)} people from all models? This cannot be undone.", yes or bool(hold))
    connection.show_list(Page(connection.client.erase_all(people, hold=hold)), COLUMNS)


@command(app)
def approve(connection: Connection, id: ErasureId, yes: Yes = False) -> None:
    """Approve a held erasure.

    Example: amend erasures approve 0b6f9c52-3d1e-4f7a-9c84-5e2a7d10f3b6
    """

    def question() -> str:
        models = connection.client.erasure(id).models
        named = ", ".join(f"{one.examples} in {one.model}" for one in models) or "none"
        return f"Erase the examples of this person ({named})? This cannot be undone."

    confirm(question, yes)
    show_erasure(connection, connection.client.approve_erasure(id))


@command(app)
def refuse(connection: Connection, id: ErasureId, reason: RefusalReason) -> None:
    """Refuse an erasure request. Its examples become active again, and the models are adapted.

    Example: amend erasures refuse 0b6f9c52-3d1e-4f7a-9c84-5e2a7d10f3b6 --reason "manifestly unfounded"
    """
    show_erasure(connection, connection.client.refuse_erasure(id, reason))


@command(app)
def extend(connection: Connection, id: ErasureId, reason: ExtensionReason) -> None:
    """Extend the due date by two months, once and within the first month (GDPR Art. 12(3)).

    You must tell the person the reason.

    Example: amend erasures extend 0b6f9c52-3d1e-4f7a-9c84-5e2a7d10f3b6 --reason "500 requests came at once"
    """
    show_erasure(connection, connection.client.extend_erasure(id, reason))


@command(app)
def receipt(connection: Connection, id: ErasureId, html: Html = None) -> None:
    """Print the receipt of a completed erasure, as JSON or as an HTML page. It does not contain the person's name.

    Example: amend erasures receipt 0b6f9c52-3d1e-4f7a-9c84-5e2a7d10f3b6 --html receipt.html
    """
    show_document(connection, id, connection.client.receipt, connection.client.receipt_page, html)


@command(app)
def refusal(connection: Connection, id: ErasureId, html: Html = None) -> None:
    """Print the notice to a person whose request was refused, as JSON or as an HTML letter.

    Example: amend erasures refusal 0b6f9c52-3d1e-4f7a-9c84-5e2a7d10f3b6 --html letter.html
    """
    show_document(connection, id, connection.client.refusal, connection.client.refusal_page, html)


@command(app)
def replay(connection: Connection) -> None:
    """Repeat, after a restore from a backup, the erasures that have a receipt but are missing from the database.

    Example: amend erasures replay
    """
    replayed = connection.client.replay_erasures()
    count = len(replayed.erasures)
    sentence = f"Receipts missing from the database: {replayed.receipts}. "
    sentence += f"Repeating {count} {'erasure' if count == 1 else 'erasures'}."
    connection.say(connection.response, sentence)


@command(receipts)
def verify(connection: Connection) -> None:
    """Verify the hash chain of the receipts; exit with status 1 if one is missing, altered or out of order.

    Example: amend receipts verify
    """
    chain = connection.client.verify_receipts()
    count = f"{chain.receipts} {'receipt' if chain.receipts == 1 else 'receipts'}"
    if chain.valid:
        last = f"; hash of the last: {chain.last}" if chain.last else ""
        connection.say(connection.response, f"The chain is valid: {count}{last}.")
        return
    if connection.as_json:
        output.print_json(connection.response)
    else:
        output.print_table(chain.flaws, FLAW_COLUMNS)
    fail(f"The chain of {count} is not valid.")


def show_document(
    connection: Connection, id: str, ask: Callable[[str], object], ask_page: Callable[[str], str], html: str | None
) -> None:
    """Print a document about an erasure as JSON, or write it as an HTML page."""
    if html is None:
        ask(id)
        output.print_json(connection.response)
    else:
        connection.save(ask_page(id).encode(), html)


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
    """Wait until the erasure has ended or is held, and return it. Each new state is printed on standard error."""
    printed = None
    try:
        while True:
            states = ", ".join([erasure.state, *(f"{part.model}: {part.state}" for part in erasure.models)])
            if states != printed:
                output.note(states)
                printed = states
            if erasure.ended or erasure.state == "held":  # waits for an approval
                return erasure
            time.sleep(POLL_SECONDS)
            erasure = connection.client.erasure(erasure.id)
    except KeyboardInterrupt:
        output.note(f"The erasure continues. To see its state: amend erasures show {erasure.id}")
        raise typer.Exit(130) from None


def format_end(erasure: Erasure) -> str | None:
    """When an erasure was completed, and whether it was late."""
    at = output.format_time(erasure.completed_at)
    return f"{at}, late" if at and erasure.late else at
