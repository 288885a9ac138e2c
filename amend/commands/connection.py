"""What all commands that talk to the service share: its address, the key, ``--json``, and how errors are shown.

A command is a function that takes a :class:`Connection` first. :func:`command` puts the options
``--url``, ``--key`` and ``--json`` in its place, so that they can be given after any command.
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
from amend.commands import output
from amend.errors import AmendError, ApiError, join_place
from amend.responses import Page
from amend.sansio import Call, Flow, listing

PANEL = "Connection and output"
# More bad fields than this bury the message.
MAX_ERRORS = 5
# Seconds before each repetition: enough for a short break of the network, little to wait when nobody is there.
RETRY_SECONDS = (0.2, 0.5, 1.0)

Url = Annotated[
    str | None,
    typer.Option(
        "--url",
        envvar="AMEND_URL",
        help="Where the service is. Default: http://127.0.0.1 at AMEND_PORT, or 8000.",
        rich_help_panel=PANEL,
    ),
]
Key = Annotated[
    str | None,
    typer.Option(
        "--key",
        envvar="AMEND_KEY",
        help="Your key. Default, for a service on this machine: the one in $AMEND_HOME/admin.key.",
        show_envvar=True,
        rich_help_panel=PANEL,
    ),
]
AsJson = Annotated[
    bool, typer.Option("--json", help="Print the service's answer as JSON, for programs.", rich_help_panel=PANEL)
]
Limit = Annotated[int | None, typer.Option("--limit", min=1, help="How many to list.")]
After = Annotated[str | None, typer.Option("--after", help="Go on from here: what the list before named as its next.")]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask for confirmation.")]

P = ParamSpec("P")
T = TypeVar("T")
OPTIONS = [
    inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation)
    for name, default, annotation in (("url", None, Url), ("key", None, Key), ("as_json", False, AsJson))
]


class RecordingClient(Client):
    """A client that keeps its last answer, which is printed as it came: with fields that this version does not know."""

    last_answer: httpx.Response

    def send(self, call: Call) -> Flow[httpx.Response]:
        self.last_answer = yield from super().send(call)
        return self.last_answer


class Connection:
    """The service as a command sees it: the client to ask it with, and the wanted form of its answers."""

    def __init__(self, client: RecordingClient, as_json: bool) -> None:
        self.client = client
        self.as_json = as_json

    @property
    def answer(self) -> Any:
        """The last answer as it came; None if it was empty."""
        content = self.client.last_answer.content
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
        """Ask for one page of a list, and show it."""
        pages = listing.make(self.client, *arguments, **options)
        self.show_list(self.client.run(pages.page(self.client, after, limit)), columns)

    def show_list(self, page: Page[T], columns: output.Columns[T]) -> None:
        if self.as_json:
            output.print_json({**self.answer, "next": page.next})
            return
        output.print_table(page.items, columns)
        if page.next:
            output.note(f"There are more: --after {page.next}")

    def show(self, answer: Mapping[str, object]) -> None:
        if self.as_json:
            output.print_json(answer)
        else:
            output.print_details(answer)

    def say(self, answer: object, sentence: str) -> None:
        """For answers whose content is that it was done."""
        if self.as_json:
            output.print_json(answer)
        else:
            typer.echo(sentence)

    def save(self, content: bytes, to: str, sentence: str | None = None) -> None:
        """Write a file, and say so; `-` is standard output."""
        if to == "-":
            sys.stdout.buffer.write(content)
            return
        try:
            Path(to).write_bytes(content)
        except OSError as error:
            fail(f"cannot write {to}: {error.strerror}")
        self.say({"file": to, "bytes": len(content)}, sentence or f"Wrote {to}.")


def command(app: typer.Typer, name: str | None = None) -> Callable[[Callable[Concatenate[Connection, P], None]], None]:
    """Make a function of a connection a command of ``app``."""

    def register(function: Callable[Concatenate[Connection, P], None]) -> None:
        @functools.wraps(function)
        def run(*, url: str | None, key: str | None, as_json: bool, **arguments: Any) -> None:
            try:
                with RecordingClient(url, key, pauses=RETRY_SECONDS) as client:
                    function(Connection(client, as_json), **arguments)  # type: ignore[call-arg]
            except AmendError as error:
                fail(describe(error))

        # The function's own parameters but the connection, then ours.
        own = list(inspect.signature(function).parameters.values())[1:]
        keyword = [parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY) for parameter in own]
        run.__signature__ = inspect.Signature([*keyword, *OPTIONS])  # type: ignore[attr-defined]
        app.command(name)(run)

    return register


def describe(error: Exception) -> str:
    """An error in one line: its code and detail, and the fields that were wrong."""
    line = str(error)
    errors = error.errors if isinstance(error, ApiError) else []
    named = (f"{join_place(bad.get('loc'))}: {bad.get('msg')}" for bad in errors)
    # The detail of an error at one field often says it already.
    fields = [field for field in named if field not in line]
    if fields:
        more = [f"and {len(fields) - MAX_ERRORS} more"] if len(fields) > MAX_ERRORS else []
        line += f" ({'; '.join(fields[:MAX_ERRORS] + more)})"
    return " ".join(line.split())


def fail(message: str) -> NoReturn:
    typer.echo(f"amend: {output.printable(message)}", err=True)
    raise typer.Exit(1)


def confirm(question: str, yes: bool) -> None:
    if not yes:
        typer.confirm(question, abort=True, err=True)
