"""Shared by all commands that call the service: address, key, ``--json``, and the display of errors.

A command is a function whose first parameter is a :class:`Connection`. :func:`command` replaces that parameter with the
options ``--url``, ``--key`` and ``--json``.
"""

import functools
import inspect
import json
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Annotated, Any, Concatenate, NoReturn, ParamSpec, TypeVar

import httpx
import typer

from amend.client import Client
from amend.client_methods import listing
from amend.commands import output
from amend.errors import AmendError, ApiError, join_place
from amend.requests import Call, Flow
from amend.responses import Page


def option(name: str, help: str, metavar: str | None = None) -> Any:
    return typer.Option(name, metavar=metavar, help=help)


PANEL = "Connection and output"
# More invalid fields than this would bury the message.
MAX_ERRORS = 5
# Seconds before each retry: enough for a short network failure, and not long if there is no service.
RETRY_SECONDS = (0.2, 0.5, 1.0)

Url = Annotated[
    str | None,
    typer.Option(
        "--url",
        envvar="AMEND_URL",
        help="Address of the service. Default: http://127.0.0.1 at port AMEND_PORT (8000).",
        rich_help_panel=PANEL,
    ),
]
Key = Annotated[
    str | None,
    typer.Option(
        "--key",
        envvar="AMEND_KEY",
        help="API key. Default, for a service on this machine: the key in $AMEND_HOME/admin.key.",
        show_envvar=True,
        rich_help_panel=PANEL,
    ),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print the response as JSON.", rich_help_panel=PANEL)]
Limit = Annotated[int | None, typer.Option("--limit", min=1, help="Maximum number of items to list.")]
After = Annotated[str | None, typer.Option("--after", help="Start after this cursor, which the previous page printed.")]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Skip the confirmation prompt.")]

P = ParamSpec("P")
T = TypeVar("T")
OPTIONS = [
    inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation)
    for name, default, annotation in (("url", None, Url), ("key", None, Key), ("as_json", False, AsJson))
]


class RecordingClient(Client):
    """A client that keeps the last response, so that ``--json`` also prints fields that only a newer service has."""

    last_response: httpx.Response

    def send(self, call: Call) -> Flow[httpx.Response]:
        self.last_response = yield from super().send(call)
        return self.last_response


class Connection:
    """What a command needs to call the service: the client, and the output format."""

    def __init__(self, client: RecordingClient, as_json: bool) -> None:
        self.client = client
        self.as_json = as_json

    @property
    def response(self) -> Any:
        """The last response, decoded from JSON; None if it was empty."""
        content = self.client.last_response.content
        return json.loads(content) if content else None

    def show_page(
        self,
        listing: listing[P, T],
        columns: output.Columns[T],
        limit: int | None,
        after: str | None,
        *arguments: P.args,
        **options: P.kwargs,
    ) -> None:
        """Request one page of a list and print it."""
        pages = listing.make(self.client, *arguments, **options)
        self.show_list(self.client.run(pages.page(self.client, after, limit)), columns)

    def show_list(self, page: Page[T], columns: output.Columns[T]) -> None:
        if self.as_json:
            output.print_json({**self.response, "next": page.next})
            return
        output.print_table(page.items, columns)
        if page.next:
            output.note(f"More items: --after {page.next}")

    def show(self, response: Mapping[str, object]) -> None:
        if self.as_json:
            output.print_json(response)
        else:
            output.print_details(response)

    def say(self, response: object, sentence: str) -> None:
        """Print a sentence; with ``--json``, the response."""
        if self.as_json:
            output.print_json(response)
        else:
            typer.echo(sentence)

    def save(self, content: bytes, to: str, sentence: str | None = None) -> None:
        """Write a file and report it. `-` is standard output."""
        if to == "-":
            sys.stdout.buffer.write(content)
            return
        try:
            Path(to).write_bytes(content)
        except OSError as error:
            fail(f"Cannot write {to}: {error.strerror}.")
        self.say({"file": to, "bytes": len(content)}, sentence or f"Wrote {to}.")


def command(app: typer.Typer, name: str | None = None) -> Callable[[Callable[Concatenate[Connection, P], None]], None]:
    """Register a function of a connection as a command of ``app``."""

    def register(function: Callable[Concatenate[Connection, P], None]) -> None:
        @functools.wraps(function)
        def run(*, url: str | None, key: str | None, as_json: bool, **arguments: Any) -> None:
            try:
                with RecordingClient(url, key, pauses=RETRY_SECONDS) as client:
                    function(Connection(client, as_json), **arguments)  # type: ignore[call-arg]
            except AmendError as error:
                fail(describe(error))

        # The function's own parameters without the connection, then the shared options.
        own = list(inspect.signature(function).parameters.values())[1:]
        keyword = [parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY) for parameter in own]
        run.__signature__ = inspect.Signature([*keyword, *OPTIONS])  # type: ignore[attr-defined]
        app.command(name)(run)

    return register


def describe(error: Exception) -> str:
    """An error in one line: its code, its detail and the invalid fields."""
    line = str(error)
    errors = error.errors if isinstance(error, ApiError) else []
    named = (f"{join_place(bad.get('loc'))}: {bad.get('msg')}" for bad in errors)
    # The detail of an error in a single field often contains the same text.
    fields = [field for field in named if field not in line]
    if fields:
        more = [f"and {len(fields) - MAX_ERRORS} more"] if len(fields) > MAX_ERRORS else []
        line += f" ({'; '.join(fields[:MAX_ERRORS] + more)})"
    return " ".join(line.split())


def fail(message: str) -> NoReturn:
    typer.echo(f"amend: {output.printable(message)}", err=True)
    raise typer.Exit(1)


def confirm(question: str | Callable[[], str], yes: bool) -> None:
    """Ask before data is dropped or erased. A question that is a function is only computed if it is asked."""
    if yes:
        return
    asked = output.printable(question if isinstance(question, str) else question())
    try:
        agreed = typer.confirm(asked, err=True)
    except typer.Abort:
        if sys.stdin.isatty():
            raise
        typer.echo(err=True)
        fail("This command asks for confirmation, but standard input has no reply. Use --yes to skip the question.")
    if not agreed:
        raise typer.Abort
