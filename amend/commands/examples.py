"""``amend examples``: put examples into a model, look at them, correct them, take them out."""

import sys
from collections.abc import Iterator
from typing import Annotated

import httpx
import msgspec
import typer
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeElapsedColumn

from amend.batches import Batch
from amend.client import Client
from amend.commands import output
from amend.commands.arguments import read_bytes
from amend.commands.connection import After, Connection, Limit, Yes, command, confirm, fail
from amend.commands.jobs import Wait
from amend.commands.models import Name, follow_up
from amend.errors import ApiError, Invalid
from amend.files import ExampleFile, Format
from amend.operations import exports
from amend.operations.examples import Sum
from amend.responses import Added, Example, Replaced
from amend.sansio import path, without_none

CONTENT_TYPES = {
    Format.JSON: "application/json",
    Format.NDJSON: "application/x-ndjson",
    Format.CSV: "text/csv",
    Format.ARROW: "application/vnd.apache.arrow.stream",
    Format.PARQUET: "application/vnd.apache.parquet",
}
# An Arrow file is this, padded to eight bytes, then an Arrow stream, then an index.
ARROW_FILE = b"ARROW1\0\0"
HTTP_TOO_LARGE = 413

app = typer.Typer(help="Add, list, correct and remove the examples of a model.", no_args_is_help=True)

COLUMNS: output.Columns[Example] = {
    "id": lambda example: example.id,
    "split": lambda example: example.split,
    "y": lambda example: example.y,
    "weight": lambda example: example.weight,
    "position": lambda example: example.position,
    "x": lambda example: shorten(output.format_value(example.x)),
}


# Bytes of a file that goes out as it is, in one request.
MAX_UNSPLIT_BYTES = 8 * 2**20

File = Annotated[
    str,
    typer.Argument(
        help="A .json, .ndjson, .jsonl, .csv, .arrow or .parquet file, or a .gz or .zst of the first four; - for stdin."
    ),
]
FormatOption = Annotated[
    Format | None, typer.Option("--format", help="The form of the file, where its name does not say.")
]
Target = Annotated[str | None, typer.Option("--target", metavar="COLUMN", help="What the file calls y.")]
Id = Annotated[str | None, typer.Option("--id", metavar="COLUMN", help="What the file calls id.")]
Subject = Annotated[str | None, typer.Option("--subject", metavar="COLUMN", help="What the file calls subject.")]
Weight = Annotated[str | None, typer.Option("--weight", metavar="COLUMN", help="What the file calls weight.")]


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
    """Add a file of examples, of any size; adding it again does no harm.

    Up to 8 MiB it is stored whole or not at all. A larger or compressed one, or one whose columns are named, goes out
    in pieces of 10 000 examples; if one of them is refused, those before it are stored.

    Example: amend examples add churn march.csv --target left --id customer
    """
    source = find_file(file, format_, target, id_, subject, weight)
    send_file(connection, Added, "POST", model, source)
    connection.show(connection.answer)


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
    """Correct examples by a file: those with the same ids are replaced, and the model is adapted.

    Up to 8 MiB all are corrected, or none; else, as with `add`, of each piece.

    Example: amend examples replace churn corrected.csv --wait
    """
    source = find_file(file, format_, target, id_, subject, weight)
    follow_up(connection, send_file(connection, Replaced, "PUT", model, source), wait)


@command(app)
def show(
    connection: Connection, model: Name, example: Annotated[str, typer.Argument(metavar="ID", help="The example's id.")]
) -> None:
    """Show an example.

    Example: amend examples show churn a1
    """
    connection.client.example(model, example)
    connection.show(connection.answer)


@command(app, "list")
def list_(connection: Connection, model: Name, limit: Limit = None, after: After = None) -> None:
    """List the examples of a model.

    Example: amend examples list churn --limit 10
    """
    connection.show_page(Client.examples, COLUMNS, limit, after, model)


@command(app)
def export(
    connection: Connection,
    model: Name,
    out: Annotated[str, typer.Option("--out", metavar="FILE", help="A .parquet or .arrow file; - for stdout.")],
    format_: Annotated[
        exports.Format | None, typer.Option("--format", help="The form of the file, where its name does not say.")
    ] = None,
) -> None:
    """Write all examples in force to a file, of any number. It has the columns that `add` takes, never the subjects.

    Example: amend examples export churn --out churn.parquet
    """
    if out == "-":
        connection.client.export_examples(model, sys.stdout.buffer, format=format_)
        return
    try:
        size = connection.client.export_examples(model, out, format=format_)
    except ValueError as error:
        fail(str(error))
    except OSError as error:
        fail(f"cannot write {out}: {error.strerror}")
    connection.say({"file": out, "bytes": size}, f"Wrote {out}.")


@command(app)
def remove(
    connection: Connection,
    model: Name,
    ids: Annotated[list[str] | None, typer.Argument(metavar="IDS", help="Ids of examples.")] = None,
    subject: Annotated[
        list[str] | None, typer.Option("--subject", help="All examples about this person; can be repeated.")
    ] = None,
    wait: Wait = False,
    yes: Yes = False,
) -> None:
    """Remove examples, and adapt the model to their absence.

    Example: amend examples remove churn a1 a2 --wait
    """
    if bool(ids) == bool(subject):
        fail(f"give the ids of examples, or --subject{', not both' if ids else ''}")
    what = f"{len(ids)} example{'s' * (len(ids) != 1)}" if ids else f"all examples about {', '.join(subject or [])}"
    confirm(f"Remove {what} from {model}?", yes)
    removed = connection.client.remove_examples(model, ids or None, subjects=subject or None)
    follow_up(connection, removed, wait)


@command(app)
def removal(
    connection: Connection,
    model: Name,
    id_: Annotated[str, typer.Argument(metavar="REMOVAL", help="The removal's id, which `remove` showed.")],
) -> None:
    """Show a removal: how many examples went, and the job that has the model forget them.

    Example: amend examples removal churn 0f9c1a7e-0000-4000-8000-000000000000
    """
    connection.client.removal(model, id_)
    connection.show(connection.answer)


def find_file(
    name: str, form: Format | None, target: str | None, id: str | None, subject: str | None, weight: str | None
) -> ExampleFile:
    """The file, and what it calls columns of examples that have other names there."""
    try:
        file = ExampleFile.find(name, form, without_none({"y": target, "id": id, "subject": subject, "weight": weight}))
        if name == "-":
            file.content = read_bytes(name)
        _ = file.size
    except ValueError as error:
        fail(f"{error}; give --format" if form is None and "cannot tell" in str(error) else str(error))
    except OSError as error:
        fail(f"cannot read {name}: {error.strerror}")
    return file


def send_file(connection: Connection, answer: type[Sum], method: str, model: str, file: ExampleFile) -> Sum:
    """Send a file as it is, if it is small enough for one request, else in pieces; the answer, as if it were one."""
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
                raise ValueError(f"there is no example in {file.name}")
            try:
                asked = client.request(method, place, content=content, content_type=CONTENT_TYPES[file.form])
                return client.read(answer, asked)
            except Invalid as error:
                if error.status != HTTP_TOO_LARGE:  # its examples may be more than fit, all the same
                    raise
        total = client.run(client.send_batches(answer, method, model, count()))
        client.last_answer = httpx.Response(200, content=msgspec.json.encode(total))
        return total
    except ApiError as error:
        raise locate_row(error, file, sent) from None
    except ValueError as error:
        fail(f"{file.name}: {error}" if file.name not in str(error) else str(error))
    except OSError as error:
        fail(f"cannot read {file.name}: {error.strerror}")


def watch(file: ExampleFile) -> Iterator[Batch]:
    """The bodies of a file, with a bar on standard error, if that is a terminal."""
    columns = (TextColumn("{task.description}", markup=False), BarColumn(), TaskProgressColumn(), TimeElapsedColumn())
    with Progress(
        *columns, console=output.console(stderr=True), transient=True, disable=not sys.stderr.isatty()
    ) as bar:
        task = bar.add_task(output.printable(file.name), total=1.0)
        for batch in file.batches():
            yield batch
            bar.update(task, completed=file.share)


def locate_row(error: ApiError, file: ExampleFile, sent: int) -> ApiError:
    """The same error with the row of the file, and what is stored all the same."""
    detail = error.detail
    match error.errors:
        case [{"loc": ["examples", int(index), *_]}, *_]:
            detail = f"row {index + 1} of {file.name}: {detail}"
    if sent:
        detail += f" The {sent} examples before it are stored; adding the file again does no harm."
    return type(error)(error.status, error.code, detail, error.errors)


def read_whole(file: ExampleFile) -> bytes:
    """The content of a file in the very form that the service takes."""
    with file.open() as opened:
        content = opened.read()
    if file.form is Format.JSON and content.lstrip().startswith(b"["):
        return b'{"examples": ' + content + b"}"
    return content.removeprefix(ARROW_FILE) if file.form is Format.ARROW else content


def shorten(text: str, length: int = 60) -> str:
    return text if len(text) <= length else text[: length - 3] + "..."
