"""``amend examples``: add, list, correct, export and remove examples."""

import sys
from collections.abc import Iterator
from typing import Annotated, Any, Literal

import httpx
import msgspec
import typer
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeElapsedColumn

from amend.client import Client
from amend.commands import output
from amend.commands.arguments import read_bytes
from amend.commands.connection import After, Connection, Limit, Yes, command, confirm, fail, option
from amend.commands.jobs import Wait
from amend.commands.models import Name, follow_up
from amend.errors import ApiError, Invalid
from amend.example_batches import Batch
from amend.example_files import ExampleFile, Format
from amend.operations import exports
from amend.operations.examples import Sum
from amend.requests import path, without_none
from amend.responses import Added, Example, Page, Replaced

CONTENT_TYPES = {
    Format.JSON: "application/json",
    Format.NDJSON: "application/x-ndjson",
    Format.CSV: "text/csv",
    Format.ARROW: "application/vnd.apache.arrow.stream",
    Format.PARQUET: "application/vnd.apache.parquet",
}
# An Arrow file consists of these eight bytes, an Arrow stream and an index.
ARROW_FILE = b"ARROW1\0\0"
HTTP_TOO_LARGE = 413
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

# A smaller file is sent unchanged, in one request.
MAX_UNSPLIT_BYTES = 8 * 2**20

FILES = "A .json, .ndjson, .jsonl or .csv file (also .gz or .zst), or .arrow or .parquet; - for standard input."
File = Annotated[str, typer.Argument(help=FILES)]
FORMAT = option("--format", "Format of the file, if its name does not tell.")
FormatOption = Annotated[Format | None, FORMAT]
Target = Annotated[str | None, option("--target", "Column with the target (y).", "COLUMN")]
Id = Annotated[str | None, option("--id", "Column with the ids.", "COLUMN")]
Subject = Annotated[str | None, option("--subject", "Column with the subjects.", "COLUMN")]
Weight = Annotated[str | None, option("--weight", "Column with the weights.", "COLUMN")]


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
) -> None:
    """Add the examples in a file of any size. Adding a file twice is safe: duplicates are counted, not stored.

    A file of up to 8 MiB is stored completely or not at all. A larger or compressed file, or one whose columns are
    renamed, is sent in batches of 10 000 examples; if a batch is rejected, the batches before it remain stored.

    Example: amend examples add churn march.csv --target left --id customer
    """
    source = find_file(file, format_, target, id_, subject, weight)
    send_file(connection, Added, "POST", model, source)
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
    source = find_file(file, format_, target, id_, None, None)
    client = connection.client
    try:
        total = client.run(client.send_labels(model, watch(source)))
    except ValueError as error:
        fail(f"{source.name}: {error}")
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
    wait: Wait = False,
) -> None:
    """Correct examples: those in the file replace the ones with the same ids, and the model is adapted.

    A file of up to 8 MiB is applied completely or not at all; a larger one in batches, as with `add`.

    Example: amend examples replace churn corrected.csv --wait
    """
    source = find_file(file, format_, target, id_, subject, weight)
    follow_up(connection, send_file(connection, Replaced, "PUT", model, source), wait)


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
    limit: Limit = None,
    after: After = None,
) -> None:
    """List the examples of a model.

    Example: amend examples list churn --source nightly --limit 10
    """
    state: Literal["quarantined"] | None = "quarantined" if quarantined else None
    label: Literal["pending"] | None = "pending" if pending else None
    pages = Client.examples.make(connection.client, model, state=state, source=source, label=label)
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
    """Remove examples by id, by subject, by source or by position, and adapt the model to their absence.

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


def find_file(
    name: str, form: Format | None, target: str | None, id: str | None, subject: str | None, weight: str | None
) -> ExampleFile:
    """The file to send, with the names of its columns."""
    try:
        file = ExampleFile.find(name, form, without_none({"y": target, "id": id, "subject": subject, "weight": weight}))
        if name == "-":
            file.content = read_bytes(name)
        _ = file.size
    except ValueError as error:
        fail(f"{error} Use --format." if form is None and "Cannot infer" in str(error) else str(error))
    except OSError as error:
        fail(f"Cannot read {name}: {error.strerror}.")
    return file


def send_file(connection: Connection, kind: type[Sum], method: str, model: str, file: ExampleFile) -> Sum:
    """Send a file in one request if it is small enough, else in batches; return the total of the responses."""
    client, sent = connection.client, 0

    def count() -> Iterator[Batch]:
        nonlocal sent
        for batch in watch(file):
            yield batch
            sent += batch.count

    try:
        if file.size <= MAX_UNSPLIT_BYTES and not file.codec and not file.names:
            content, place = read_whole(file), path("models", model, "examples")
            if not content:
                raise ValueError(f"{file.name} contains no examples.")
            try:
                response = client.request(method, place, content=content, content_type=CONTENT_TYPES[file.form])
                return client.read(kind, response)
            except Invalid as error:
                if error.status != HTTP_TOO_LARGE:  # a small file can still have too many examples
                    raise
        total = client.run(client.send_batches(kind, method, model, count()))
        client.last_response = httpx.Response(200, content=msgspec.json.encode(total))
        return total
    except ApiError as error:
        raise locate_row(error, file, sent) from None
    except ValueError as error:
        fail(f"{file.name}: {error}" if file.name not in str(error) else str(error))
    except OSError as error:
        fail(f"Cannot read {file.name}: {error.strerror}.")


def watch(file: ExampleFile) -> Iterator[Batch]:
    """The batches of a file, with a progress bar if standard error is a terminal."""
    columns = (TextColumn("{task.description}", markup=False), BarColumn(), TaskProgressColumn(), TimeElapsedColumn())
    with Progress(
        *columns, console=output.console(stderr=True), transient=True, disable=not sys.stderr.isatty()
    ) as bar:
        task = bar.add_task(output.printable(file.name), total=1.0)
        for batch in file.batches():
            yield batch
            bar.update(task, completed=file.share)


def locate_row(error: ApiError, file: ExampleFile, sent: int) -> ApiError:
    """The same error with the row in the file, and the number of examples that were stored before it."""
    detail = error.detail
    match error.errors:
        case [{"loc": ["examples", int(index), *_]}, *_]:
            detail = f"Row {index + 1} of {file.name}: {detail}"
    if sent:
        detail += f" The {sent} examples before it are stored; it is safe to add the file again."
    return type(error)(error.status, error.code, detail, error.errors)


def read_whole(file: ExampleFile) -> bytes:
    """The content of a file in a format that the service accepts."""
    with file.open() as opened:
        content = opened.read()
    if file.form is Format.JSON and content.lstrip().startswith(b"["):
        return b'{"examples": ' + content + b"}"
    return content.removeprefix(ARROW_FILE) if file.form is Format.ARROW else content


def shorten(text: str, length: int = 60) -> str:
    return text if len(text) <= length else text[: length - 3] + "..."
