"""Sends files of examples: in one request if they are small, otherwise in batches with a progress bar."""

import sys
from collections.abc import Iterator

import httpx
import msgspec
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeElapsedColumn

from amend.commands import output
from amend.commands.arguments import read_bytes
from amend.commands.connection import Connection, fail
from amend.errors import ApiError, Invalid
from amend.example_batches import Batch
from amend.example_files import ExampleFile, Format
from amend.operations.examples import Sum
from amend.requests import path, without_none

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
# A smaller file is sent unchanged, in one request.
MAX_UNSPLIT_BYTES = 8 * 2**20


def find_file(name: str, form: Format | None, **columns: str | None) -> ExampleFile:
    """The file to send, with the names of its columns."""
    try:
        file = ExampleFile.find(name, form, without_none(columns))
        if name == "-":
            file.content = read_bytes(name)
        _ = file.size
    except ValueError as error:
        fail(f"{error} Use --format." if form is None and "Cannot infer" in str(error) else str(error))
    except OSError as error:
        fail(f"Cannot read {name}: {error.strerror}.")
    return file


def send_file(
    connection: Connection, kind: type[Sum], method: str, model: str, file: ExampleFile, source: str | None = None
) -> Sum:
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
                kind_of_body, params = CONTENT_TYPES[file.form], without_none({"source": source})
                response = client.request(method, place, params=params, content=content, content_type=kind_of_body)
                return client.read(kind, response)
            except Invalid as error:
                if error.status != HTTP_TOO_LARGE:  # a small file can still have too many examples
                    raise
        total = client.run(client.send_batches(kind, method, model, count(), source))
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
