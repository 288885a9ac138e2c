"""``amend erasures`` and ``amend receipts``: have a person forgotten by all models, and prove it."""

import time
from collections.abc import Callable
from typing import Annotated

import typer

from amend.client import Client
from amend.commands import output
from amend.commands.arguments import read_lines
from amend.commands.connection import After, Connection, Limit, command, fail
from amend.errors import ErasureFailed
from amend.responses import Erasure, Event, Flaw, Page, Part

# Seconds between two questions how an erasure stands that is awaited.
POLL_SECONDS = 1.0

app = typer.Typer(help="Have people forgotten by all models, with a due date and a receipt.", no_args_is_help=True)
receipts = typer.Typer(help="Check the receipts of erasures.", no_args_is_help=True)

ErasureId = Annotated[str, typer.Argument(metavar="ID", help="The erasure's id, or how it begins.")]
WhyRefused = Annotated[str, typer.Option("--reason", help="Why; in the letter to the person, and kept.")]
WhyExtended = Annotated[str, typer.Option("--reason", help="Why; deleted when the erasure is completed.")]

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
    "done": lambda event: event.what,
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
    subject: Annotated[str, typer.Argument(help="The person, as named by the `subject` of their examples.")],
    reason: Annotated[
        str | None, typer.Option("--reason", help="For your own records; deleted when the erasure ends.")
    ] = None,
    received_at: Annotated[
        str | None,
        typer.Option(
            "--received-at",
            help="When the person asked, if earlier: 2025-03-01T09:00:00Z. UTC, unless it has a time zone.",
        ),
    ] = None,
    hold: Annotated[
        bool | None,
        typer.Option(
            "--hold/--no-hold", help="Only take the examples out of force until it is approved. Default: the setting."
        ),
    ] = None,
    wait: Annotated[
        bool,
        typer.Option("--wait", help="Wait until it has ended; fail unless it is completed, at once if it is held."),
    ] = False,
) -> None:
    """Have a person forgotten by all models. A request for the same person that is open already is joined.

    Example: amend erasures ask user-7 --received-at 2025-03-01T09:00:00Z --wait
    """
    erasure = connection.client.erase(subject, reason=reason, received_at=received_at, hold=hold)
    if wait:
        erasure = follow(connection, erasure)
    show_erasure(connection, erasure)
    if not erasure.models and not connection.as_json:
        output.note("No model knows this person.")
    if wait and erasure.state != "completed":
        raise ErasureFailed(erasure)


@command(app, "list")
def list_(
    connection: Connection,
    state: Annotated[
        str | None,
        typer.Option(
            "--state", help="Only held, received, adapting, verifying, purging, completed, failed or refused ones."
        ),
    ] = None,
    overdue: Annotated[bool, typer.Option("--overdue", help="Only those past their due date and not done.")] = False,
    limit: Limit = None,
    after: After = None,
) -> None:
    """List erasures, the newest first.

    Example: amend erasures list --overdue
    """
    connection.show_page(Client.erasures, COLUMNS, limit, after, state=state, overdue=overdue or None)


@command(app)
def show(connection: Connection, id: ErasureId) -> None:
    """Show an erasure, and how far each model is.

    Example: amend erasures show 0b6f9c52-3d1e-4f7a-9c84-5e2a7d10f3b6
    """
    show_erasure(connection, connection.client.erasure(id))


@command(app)
def retry(
    connection: Connection,
    id: Annotated[
        str | None, typer.Argument(metavar="[ID]", help="The erasure's id. Default: all that failed.")
    ] = None,
) -> None:
    """Try again an erasure that failed, or all of them.

    Example: amend erasures retry
    """
    if id is not None:
        show_erasure(connection, connection.client.retry_erasure(id))
        return
    count = len(connection.client.retry_erasures().retried)
    connection.say(connection.answer, f"{count} {'erasure is' if count == 1 else 'erasures are'} tried again.")


@command(app)
def file(
    connection: Connection,
    source: Annotated[str, typer.Argument(metavar="FILE", help="One subject a line; -: standard input.")],
    hold: Annotated[
        bool | None, typer.Option("--hold/--no-hold", help="Have them wait for an approval. Default: the setting.")
    ] = None,
) -> None:
    """Have many people forgotten, up to 1000 at once: a request for each, all of them or none.

    Example: amend erasures file people.txt --hold
    """
    connection.show_list(Page(connection.client.erase_all(read_lines(source), hold=hold)), COLUMNS)


@command(app)
def approve(connection: Connection, id: ErasureId) -> None:
    """Have a request that was held carried out.

    Example: amend erasures approve 0b6f9c52-3d1e-4f7a-9c84-5e2a7d10f3b6
    """
    show_erasure(connection, connection.client.approve_erasure(id))


@command(app)
def refuse(connection: Connection, id: ErasureId, reason: WhyRefused) -> None:
    """Refuse a request, with a reason. What it took out of force comes back, and the models follow.

    Example: amend erasures refuse 0b6f9c52-3d1e-4f7a-9c84-5e2a7d10f3b6 --reason "manifestly unfounded"
    """
    show_erasure(connection, connection.client.refuse_erasure(id, reason))


@command(app)
def extend(connection: Connection, id: ErasureId, reason: WhyExtended) -> None:
    """Move the due date by two months, once and within the first, with a reason that the person is told.

    Example: amend erasures extend 0b6f9c52-3d1e-4f7a-9c84-5e2a7d10f3b6 --reason "500 requests came at once"
    """
    show_erasure(connection, connection.client.extend_erasure(id, reason))


@command(app)
def receipt(
    connection: Connection,
    id: ErasureId,
    html: Annotated[
        str | None, typer.Option("--html", metavar="FILE", help="Write a page to read and print; -: stdout.")
    ] = None,
) -> None:
    """Print the receipt of a completed erasure, which names nobody, as JSON or as a page.

    Example: amend erasures receipt 0b6f9c52-3d1e-4f7a-9c84-5e2a7d10f3b6 --html receipt.html
    """
    show_document(connection, id, connection.client.receipt, connection.client.receipt_page, html)


@command(app)
def refusal(
    connection: Connection,
    id: ErasureId,
    html: Annotated[
        str | None, typer.Option("--html", metavar="FILE", help="Write a letter to print; -: stdout.")
    ] = None,
) -> None:
    """Print what a person must be told whose request was refused, as JSON or as a letter.

    Example: amend erasures refusal 0b6f9c52-3d1e-4f7a-9c84-5e2a7d10f3b6 --html letter.html
    """
    show_document(connection, id, connection.client.refusal, connection.client.refusal_page, html)


@command(app)
def replay(connection: Connection) -> None:
    """After a restore from a backup: carry out again every erasure that the receipts know and the database does not.

    Example: amend erasures replay
    """
    replayed = connection.client.replay_erasures()
    begun = len(replayed.erasures)
    sentence = f"{replayed.receipts} receipts were missing in the database; "
    sentence += f"{begun} {'erasure is' if begun == 1 else 'erasures are'} carried out again."
    connection.say(connection.answer, sentence)


@command(receipts)
def verify(connection: Connection) -> None:
    """Walk the chain of receipts: exit code 1 if one is missing, altered or out of place.

    Example: amend receipts verify
    """
    chain = connection.client.verify_receipts()
    count = f"{chain.receipts} {'receipt' if chain.receipts == 1 else 'receipts'}"
    if chain.valid:
        last = f"; the last one's hash is {chain.last}" if chain.last else ""
        connection.say(connection.answer, f"The chain is valid: {count}{last}.")
        return
    if connection.as_json:
        output.print_json(connection.answer)
    else:
        output.print_table(chain.flaws, FLAW_COLUMNS)
    fail(f"the chain of {count} is not valid")


def show_document(
    connection: Connection,
    id: str,
    ask: Callable[[str], object],
    ask_page: Callable[[str], str],
    html: str | None,
) -> None:
    """Print a document about an erasure as JSON, or write it as a page."""
    if html is None:
        ask(id)
        output.print_json(connection.answer)
    else:
        connection.save(ask_page(id).encode(), html)


def show_erasure(connection: Connection, erasure: Erasure) -> None:
    """Show the erasure that was answered last."""
    if connection.as_json:
        output.print_json(connection.answer)
        return
    output.print_details({name: value for name, value in connection.answer.items() if name not in ("models", "trail")})
    if erasure.trail:
        typer.echo()
        output.print_table(erasure.trail, TRAIL_COLUMNS)
    if erasure.models:
        typer.echo()
        output.print_table(erasure.models, PART_COLUMNS)


def follow(connection: Connection, erasure: Erasure) -> Erasure:
    """The erasure when it has ended, or is held; until then each new state is printed on standard error."""
    printed = None
    try:
        while True:
            states = ", ".join([erasure.state, *(f"{part.model}: {part.state}" for part in erasure.models)])
            if states != printed:
                output.note(states)
                printed = states
            if erasure.ended or erasure.state == "held":  # which only an approval ends
                return erasure
            time.sleep(POLL_SECONDS)
            erasure = connection.client.erasure(erasure.id)
    except KeyboardInterrupt:
        output.note(f"The erasure goes on. To see how it stands: amend erasures show {erasure.id}")
        raise typer.Exit(130) from None


def format_end(erasure: Erasure) -> str | None:
    """When an erasure was completed, and whether that was late."""
    at = output.format_time(erasure.completed_at)
    return f"{at}, late" if at and erasure.late else at
