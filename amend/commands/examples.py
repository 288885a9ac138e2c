"""``amend examples``: add, list, correct, export and remove examples."""

import sys
from typing import Annotated, Any, Literal

import httpx
import msgspec
import typer

from amend.client import Client
from amend.commands import output
from amend.commands.connection import After, Connection, Limit, Yes, command, confirm, fail, option
from amend.commands.example_upload import find_file, send_file, watch
from amend.commands.jobs import Wait
from amend.commands.models import Name, follow_up
from amend.example_files import Format
from amend.operations import exports
from amend.requests import path
from amend.responses import Added, Example, Page, Replaced

Split = Literal["train", "holdout"]
PAGE = 1000

app = typer.Typer(help="Add, list, correct, export and remove the examples of a model.", no_args_is_help=True)

COLUMNS: output.Columns[Example] = {
    "id": lambda example: example.id,
    "split": lambda example: example.split,
    "y": lambda example: example.y,
    "weight": lambda example: example.weight,
    "position": lambda example: example.position,
    "x": lambda example: shorten(output.format_value(example.x)),
}

FILES = "A .json, .ndjson, .jsonl or .csv file (also .gz or .zst), or .arrow or .parquet; - for standard input."
File = Annotated[str, typer.Argument(help=FILES)]
FORMAT = option("--format", "Format of the file. Default: by the extension of its name.")
FormatOption = Annotated[Format | None, FORMAT]
Target = Annotated[str | None, option("--target", "Column with the target (y).", "COLUMN")]
Id = Annotated[str | None, option("--id", "Column with the ids.", "COLUMN")]
Subject = Annotated[str | None, option("--subject", "Column with the subjects.", "COLUMN")]
Weight = Annotated[str | None, option("--weight", "Column with the weights.", "COLUMN")]
Time = Annotated[str | None, option("--time", "Column with the event times.", "COLUMN")]


@command(app)
def add(
    connection: Connection,
    model: Name,
    file: File,
    format_: FormatOption = None,
    target: Target = None,
    id_: Id = None,
    subject: Subject = None,
    weight: Weight = None,
    time: Time = None,
    source: Annotated[
        str | None, option("--source", "Name of this load, for examples without a `source` of their own.", "NAME")
    ] = None,
) -> None:
    """Add the examples in a file of any size. Adding a file twice is safe: duplicates are counted, not stored.

    A file of up to 8 MiB is stored completely or not at all. A larger or compressed file, or one whose columns are
    renamed, is sent in batches of 10 000 examples; if a batch is rejected, the batches before it remain stored.

    Example: amend examples add churn march.csv --target left --id customer --source march
    """
    found = find_file(file, format_, y=target, id=id_, subject=subject, weight=weight, time=time)
    send_file(connection, Added, "POST", model, found, source)
    connection.show(connection.response)


@command(app)
def label(
    connection: Connection,
    model: Name,
    file: File,
    format_: FormatOption = None,
    target: Target = None,
    id_: Id = None,
) -> None:
    """Add the labels in a file with the columns id and y to examples that were stored without a label.

    Example: amend examples label churn outcomes.csv
    """
    found = find_file(file, format_, y=target, id=id_)
    client = connection.client
    try:
        total = client.run(client.send_labels(model, watch(found)))
    except ValueError as error:
        fail(f"{found.name}: {error}")
    client.last_response = httpx.Response(200, content=msgspec.json.encode(total))
    connection.show(connection.response)


@command(app)
def replace(
    connection: Connection,
    model: Name,
    file: File,
    format_: FormatOption = None,
    target: Target = None,
    id_: Id = None,
    subject: Subject = None,
    weight: Weight = None,
    time: Time = None,
    wait: Wait = False,
) -> None:
    """Correct examples: those in the file replace the ones with the same ids, and the model is adapted.

    A file of up to 8 MiB is applied completely or not at all; a larger one in batches, as with `add`.

    Example: amend examples replace churn corrected.csv --wait
    """
    found = find_file(file, format_, y=target, id=id_, subject=subject, weight=weight, time=time)
    follow_up(connection, send_file(connection, Replaced, "PUT", model, found), wait)


@command(app)
def relabel(
    connection: Connection,
    model: Name,
    id_: Annotated[str, typer.Argument(metavar="ID", help="Id of the example.")],
    y: Annotated[str, typer.Argument(metavar="LABEL", help="The correct label, as JSON or text.")],
    wait: Wait = False,
) -> None:
    """Correct the label of an example, for instance a suspicious one, and adapt the model.

    Example: amend examples relabel churn a1 0 --wait
    """
    try:
        given = msgspec.json.decode(y)
    except msgspec.DecodeError:
        given = y
    follow_up(connection, connection.client.correct_label(model, id_, given), wait)


@command(app)
def show(
    connection: Connection,
    model: Name,
    example: Annotated[str, typer.Argument(metavar="ID", help="Id of the example.")],
) -> None:
    """Show an example.

    Example: amend examples show churn a1
    """
    connection.client.example(model, example)
    connection.show(connection.response)


@command(app, "list")
def list_(
    connection: Connection,
    model: Name,
    quarantined: Annotated[bool, typer.Option("--quarantined", help="List examples in quarantine instead.")] = False,
    pending: Annotated[bool, typer.Option("--pending", help="List examples without a label instead.")] = False,
    source: Annotated[str | None, option("--source", "Only examples from this source.", "NAME")] = None,
    split: Annotated[Split | None, option("--split", "Only training or holdout examples.")] = None,
    since: Annotated[
        str | None, option("--since", "Only examples at or after this event time (or time of arrival).", "TIME")
    ] = None,
    limit: Limit = None,
    after: After = None,
) -> None:
    """List the examples of a model.

    Example: amend examples list churn --source nightly --limit 10
    """
    state: Literal["quarantined"] | None = "quarantined" if quarantined else None
    label: Literal["pending"] | None = "pending" if pending else None
    pages = Client.examples.make(
        connection.client, model, state=state, source=source, split=split, label=label, since=since
    )
    connection.show_list(connection.client.run(pages.page(connection.client, after, limit)), COLUMNS)


@command(app)
def export(
    connection: Connection,
    model: Name,
    to: Annotated[
        str, typer.Option("--output", "-o", metavar="FILE", help="A .parquet or .arrow file; - for standard output.")
    ],
    format_: Annotated[exports.Format | None, FORMAT] = None,
) -> None:
    """Export all active examples to a file with the columns that `add` reads. Subjects are not exported.

    Example: amend examples export churn --output churn.parquet
    """
    if to == "-":
        connection.client.export_examples(model, sys.stdout.buffer, format=format_)
        return
    try:
        size = connection.client.export_examples(model, to, format=format_)
    except ValueError as error:
        fail(str(error))
    except OSError as error:
        fail(f"Cannot write {to}: {error.strerror}.")
    connection.say({"file": to, "bytes": size}, f"Wrote {to}.")


@command(app)
def remove(
    connection: Connection,
    model: Name,
    ids: Annotated[list[str] | None, typer.Argument(metavar="IDS", help="Ids of the examples.")] = None,
    subject: Annotated[list[str] | None, option("--subject", "Person to remove. Can be repeated.")] = None,
    source: Annotated[str | None, option("--source", "Remove all examples of this source.")] = None,
    positions: Annotated[
        tuple[int, int] | None, option("--positions", "Remove the examples added at these positions.", "FIRST LAST")
    ] = None,
    wait: Wait = False,
    yes: Yes = False,
) -> None:
    """Remove examples by id, by subject, by source or by position, and adapt the model.

    Example: amend examples remove churn a1 a2 --wait
    """
    if sum(map(bool, (ids, subject, source, positions))) != 1:
        fail("Give exactly one of: the ids of examples, --subject, --source, --positions.")

    def question() -> str:
        if ids:
            selection = f"{len(ids)} example{'s' * (len(ids) != 1)}"
        elif positions:
            selection = f"the examples at positions {positions[0]} to {positions[1]}"
        elif source is not None:
            selection = f"{count_examples(connection, model, source)} examples of {source}, and quarantined ones,"
        else:
            selection = f"all examples of {', '.join(subject or [])}"
        return f"Remove {selection} from {model}?"

    confirm(question, yes)
    removed = connection.client.remove_examples(
        model, ids or None, subjects=subject or None, source=source, positions=positions
    )
    follow_up(connection, removed, wait)


@command(app)
def removal(
    connection: Connection,
    model: Name,
    id_: Annotated[str, typer.Argument(metavar="REMOVAL", help="Id of the removal, as printed by `remove`.")],
) -> None:
    """Show a removal: the number of removed examples, and the job that adapts the model.

    Example: amend examples removal churn 0f9c1a7e-0000-4000-8000-000000000000
    """
    connection.client.removal(model, id_)
    connection.show(connection.response)


def count_examples(connection: Connection, model: str, source: str) -> str:
    """The number of active examples of a source. Beyond one page they are not counted."""
    client = connection.client
    page = client.run(client.ask(Page[Any], "GET", path("models", model, "examples"), source=source, limit=PAGE))
    return f"more than {PAGE}" if page.next else str(len(page.items))


def shorten(text: str) -> str:
    return text if len(text) <= 60 else text[:57] + "..."
