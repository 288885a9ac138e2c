"""``amend erasures`` and ``amend receipts``: have a person forgotten by all models, and prove it."""

import time
from typing import Annotated, Any

import typer

from amend.commands import output
from amend.commands.connection import After, Connection, Limit, command, fail
from amend.sansio import path

ENDED = frozenset({"completed", "failed", "refused"})
# Seconds between two looks at an erasure that is awaited.
POLL = 1.0

app = typer.Typer(help="Have people forgotten by all models, with a due date and a receipt.", no_args_is_help=True)
receipts = typer.Typer(help="Check the receipts of erasures.", no_args_is_help=True)

ErasureId = Annotated[str, typer.Argument(metavar="ID", help="The erasure's id.")]
Reason = Annotated[
    str,
    typer.Option(
        "--reason", help="Why; shown with the erasure until it is completed, or from then on if it is refused."
    ),
]

COLUMNS: output.Columns = {
    "id": "id",
    "state": "state",
    "received": output.moment("received_at"),
    "due": output.moment("due_at"),
    "overdue": "overdue",
    "completed": lambda erasure: completed(erasure),
    "models": lambda erasure: len(erasure["models"]),
    "examples": lambda erasure: sum(part["examples"] for part in erasure["models"]),
}
TRAIL_COLUMNS: output.Columns = {"done": "what", "by": "by", "at": output.moment("at")}
PART_COLUMNS: output.Columns = {
    "model": "model",
    "state": "state",
    "examples": "examples",
    "method": "method",
    "version": "version",
    "bound": "bound",
    "error": lambda part: error_of(part),
}


@command(app)
def ask(
    connection: Connection,
    subject: Annotated[str, typer.Argument(help="The person, as named by the `subject` of their examples.")],
    reason: Annotated[
        str | None, typer.Option("--reason", help="For your own records; deleted when the erasure ends.")
    ] = None,
    received_at: Annotated[
        str | None, typer.Option("--received-at", help="When the person asked, if earlier: 2025-03-01T09:00:00Z.")
    ] = None,
    hold: Annotated[
        bool | None,
        typer.Option(
            "--hold/--no-hold", help="Only take the examples out of force until it is approved. Default: the setting."
        ),
    ] = None,
    wait: Annotated[bool, typer.Option("--wait", help="Wait until it has ended; fail unless it is completed.")] = False,
) -> None:
    """Have a person forgotten by all models. A request for the same person that is open already is joined.

    Example: amend erasures ask user-7 --received-at 2025-03-01T09:00:00Z --wait
    """
    given = {"subject": subject, "reason": reason, "received_at": received_at, "hold": hold}
    erasure = connection.client.post(path("erasures"), {name: v for name, v in given.items() if v is not None})
    if wait:
        erasure = follow(connection, erasure)
    show_erasure(connection, erasure)
    if not erasure["models"] and not connection.as_json:
        output.note("No model knows this person.")
    if wait and erasure["state"] != "completed":
        fail(f"erasure {erasure['id']} {erasure['state']}{why(erasure)}")


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
    late = "true" if overdue else None
    answer = connection.client.get(path("erasures"), state=state, overdue=late, limit=limit, after=after)
    connection.show_list(answer, COLUMNS)


@command(app)
def show(connection: Connection, id: ErasureId) -> None:
    """Show an erasure, and how far each model is.

    Example: amend erasures show 0b6f9c52-3d1e-4f7a-9c84-5e2a7d10f3b6
    """
    show_erasure(connection, connection.client.get(path("erasures", id)))


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
        show_erasure(connection, connection.client.post(path("erasures", id, "retry")))
        return
    answer = connection.client.post(path("erasures", "retry"))
    count = len(answer["retried"])
    connection.say(answer, f"{count} {'erasure is' if count == 1 else 'erasures are'} tried again.")


@command(app)
def file(
    connection: Connection,
    source: Annotated[typer.FileText, typer.Argument(metavar="FILE", help="One subject a line; -: standard input.")],
    hold: Annotated[
        bool | None, typer.Option("--hold/--no-hold", help="Have them wait for an approval. Default: the setting.")
    ] = None,
) -> None:
    """Have many people forgotten, up to 1000 at once: a request for each, all of them or none.

    Example: amend erasures file people.txt --hold
    """
    given = {} if hold is None else {"hold": hold}
    requests = [{"subject": line.strip(), **given} for line in source if line.strip()]
    answer = connection.client.post(path("erasures", "batch"), {"requests": requests})
    connection.show_list({"items": answer["items"], "next": None}, COLUMNS)


@command(app)
def approve(connection: Connection, id: ErasureId) -> None:
    """Have a request that was held carried out.

    Example: amend erasures approve 7f3c
    """
    show_erasure(connection, connection.client.post(path("erasures", id, "approve")))


@command(app)
def refuse(connection: Connection, id: ErasureId, reason: Reason) -> None:
    """Refuse a request, with a reason. What it took out of force comes back, and the models follow.

    Example: amend erasures refuse 0b6f9c52-3d1e-4f7a-9c84-5e2a7d10f3b6 --reason "manifestly unfounded"
    """
    show_erasure(connection, connection.client.post(path("erasures", id, "refuse"), {"reason": reason}))


@command(app)
def extend(connection: Connection, id: ErasureId, reason: Reason) -> None:
    """Move the due date by two months, once and within the first, with a reason that the person is told.

    Example: amend erasures extend 0b6f9c52-3d1e-4f7a-9c84-5e2a7d10f3b6 --reason "500 requests came at once"
    """
    show_erasure(connection, connection.client.post(path("erasures", id, "extend"), {"reason": reason}))


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
    show_page(connection, path("erasures", id, "receipt"), html)


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
    show_page(connection, path("erasures", id, "refusal"), html)


def show_page(connection: Connection, place: str, html: str | None) -> None:
    """Print what is there as JSON, or write it as a page."""
    if html is None:
        output.print_json(connection.client.get(place))
        return
    page = connection.client.request("GET", place, accept="text/html").content
    connection.save(page, html)


@command(app)
def replay(connection: Connection) -> None:
    """After a restore from a backup: carry out again every erasure that the receipts know and the database does not.

    Example: amend erasures replay
    """
    answer = connection.client.post(path("erasures", "replay"))
    begun = len(answer["erasures"])
    sentence = f"{answer['receipts']} receipts were missing in the database; "
    connection.say(answer, sentence + f"{begun} {'erasure is' if begun == 1 else 'erasures are'} carried out again.")


@command(receipts)
def verify(connection: Connection) -> None:
    """Walk the chain of receipts: exit code 1 if one is missing, altered or out of place.

    Example: amend receipts verify
    """
    answer = connection.client.get(path("receipts", "verify"))
    count = f"{answer['receipts']} {'receipt' if answer['receipts'] == 1 else 'receipts'}"
    if answer["valid"]:
        last = f"; the last one's hash is {answer['last']}" if answer["last"] else ""
        connection.say(answer, f"The chain is valid: {count}{last}.")
        return
    if connection.as_json:
        output.print_json(answer)
    else:
        output.print_table(answer["flaws"], {"receipt": "number", "problem": "problem"})
    fail(f"the chain of {count} is not valid")


def show_erasure(connection: Connection, erasure: dict[str, Any]) -> None:
    if connection.as_json:
        output.print_json(erasure)
        return
    output.print_details({name: value for name, value in erasure.items() if name not in ("models", "trail")})
    if erasure.get("trail"):
        typer.echo()
        output.print_table(erasure["trail"], TRAIL_COLUMNS)
    if erasure["models"]:
        typer.echo()
        output.print_table(erasure["models"], PART_COLUMNS)


def follow(connection: Connection, erasure: dict[str, Any]) -> dict[str, Any]:
    """The erasure when it has ended; until then each new state is told on standard error."""
    told = None
    try:
        while True:
            words = ", ".join([erasure["state"], *(f"{p['model']}: {p['state']}" for p in erasure["models"])])
            if words != told:
                output.note(words)
                told = words
            if erasure["state"] in ENDED:
                return erasure
            time.sleep(POLL)
            erasure = connection.client.get(path("erasures", erasure["id"]))
    except KeyboardInterrupt:
        output.note(f"The erasure goes on. To see how it stands: amend erasures show {erasure['id']}")
        raise typer.Exit(130) from None


def completed(erasure: dict[str, Any]) -> str | None:
    """When an erasure ended, and whether that was late."""
    at: str | None = output.moment("completed_at")(erasure)
    return f"{at}, late" if at and erasure.get("late") else at


def why(erasure: dict[str, Any]) -> str:
    """What went wrong in the models where something did."""
    return "".join(f"; {part['model']}: {error_of(part)}" for part in erasure["models"] if part.get("error"))


def error_of(part: dict[str, Any]) -> str | None:
    error = part.get("error")
    return f"{error['code']}: {error['detail']}" if error else None
