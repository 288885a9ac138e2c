"""``amend examples``: put examples into a model, look at them, correct them, take them out."""

import csv
import io
import sys
from collections.abc import Mapping
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from amend import batches, frames
from amend.client import Client
from amend.commands import output
from amend.commands.arguments import read_bytes, read_table
from amend.commands.connection import After, Connection, Limit, Yes, command, confirm, fail
from amend.commands.jobs import Wait
from amend.commands.models import Name, follow_up
from amend.operations import exports
from amend.responses import Example, Replaced
from amend.sansio import path, without_none


class Format(StrEnum):
    """Forms of a batch of examples."""

    JSON = "json"
    NDJSON = "ndjson"
    CSV = "csv"
    ARROW = "arrow"
    PARQUET = "parquet"


CONTENT_TYPES = {
    Format.JSON: "application/json",
    Format.NDJSON: "application/x-ndjson",
    Format.CSV: "text/csv",
    Format.ARROW: "application/vnd.apache.arrow.stream",
    Format.PARQUET: "application/vnd.apache.parquet",
}
SUFFIXES = {f".{form}": form for form in Format} | {".jsonl": Format.NDJSON, ".arrows": Format.ARROW}
# An Arrow file is this, padded to eight bytes, then an Arrow stream, then an index.
ARROW_FILE = b"ARROW1\0\0"

app = typer.Typer(help="Add, list, correct and remove the examples of a model.", no_args_is_help=True)

COLUMNS: output.Columns[Example] = {
    "id": lambda example: example.id,
    "split": lambda example: example.split,
    "y": lambda example: example.y,
    "weight": lambda example: example.weight,
    "position": lambda example: example.position,
    "x": lambda example: shorten(output.format_value(example.x)),
}


File = Annotated[str, typer.Argument(help="A .json, .ndjson, .jsonl, .csv, .arrow or .parquet file; - for stdin.")]
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
    """Add a file of examples; it is stored whole or not at all, and adding it again does no harm.

    Example: amend examples add churn march.csv --target left --id customer
    """
    content, content_type = read_examples(file, format_, {"y": target, "id": id_, "subject": subject, "weight": weight})
    connection.show(
        connection.client.post(path("models", model, "examples"), content=content, content_type=content_type)
    )


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
    """Correct examples by a file: those with the same ids are replaced, all or none, and the model is adapted.

    Example: amend examples replace churn corrected.csv --wait
    """
    content, content_type = read_examples(file, format_, {"y": target, "id": id_, "subject": subject, "weight": weight})
    place = path("models", model, "examples")
    answer = connection.client.request("PUT", place, content=content, content_type=content_type)
    follow_up(connection, connection.client.read(Replaced, answer), wait)


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
    what = f"{len(ids)} example(s)" if ids else f"all examples about {', '.join(subject or [])}"
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


def read_examples(file: str, given: Format | None, named: Mapping[str, str | None]) -> tuple[bytes, str]:
    """The content of the file, in the very form the service takes, and its content type.

    `named` tells how the file calls columns of examples that have other names there.
    """
    form = given or SUFFIXES.get(Path(file).suffix.lower())
    if form is None:
        fail(f"cannot tell the form of {file} by its name: give --format ({', '.join(Format)})")
    if names := without_none(named):
        return name_columns(file, form, names)
    content = read_bytes(file)
    if form is Format.JSON and content.lstrip().startswith(b"["):
        content = b'{"examples": ' + content + b"}"
    if form is Format.ARROW:
        content = content.removeprefix(ARROW_FILE)
    return content, CONTENT_TYPES[form]


def name_columns(file: str, form: Format, names: dict[str, str]) -> tuple[bytes, str]:
    """The content of a file with columns, under the names that examples have."""
    if form not in (Format.CSV, Format.ARROW, Format.PARQUET):
        fail("--target, --id, --subject and --weight name columns: of .csv, .arrow and .parquet files")
    try:
        if form is Format.CSV:
            return name_csv_columns(read_bytes(file), names), CONTENT_TYPES[form]
        stream = batches.write_stream(frames.name_columns(read_table(file, f".{form}"), names).to_batches())
    except ValueError as error:
        fail(f"{file}: {error}")
    return stream.content, stream.content_type


def name_csv_columns(content: bytes, names: dict[str, str]) -> bytes:
    """CSV with other names. Its values stay the texts that they are: what they mean is the service's to say."""
    try:
        rows = csv.reader(io.StringIO(content.decode("utf-8-sig"), newline=""), strict=True)
        header, *lines = [row for row in rows if row]
    except (UnicodeDecodeError, csv.Error, ValueError) as error:
        raise ValueError(f"it cannot be read as CSV: {error}") from error
    for column in names.values():
        if column not in header:
            raise ValueError(f"the file has no column {column!r}; it has {frames.quote(header)}")
    rest = [i for i, name in enumerate(header) if name not in {*names, *names.values()}]
    places = [*(header.index(column) for column in names.values()), *rest]
    out = io.StringIO(newline="")
    writer = csv.writer(out)
    writer.writerow([*names, *(header[i] for i in rest)])
    for number, line in enumerate(lines, 2):
        if len(line) != len(header):
            raise ValueError(f"line {number} has {len(line)} fields; the header has {len(header)}")
        writer.writerow([line[i] for i in places])
    return out.getvalue().encode()


def shorten(text: str, length: int = 60) -> str:
    return text if len(text) <= length else text[: length - 3] + "..."
