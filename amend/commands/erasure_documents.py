"""More of ``amend erasures``: receipts, letters, notices, bundles, the register of requests, and statistics."""

from collections.abc import Callable
from operator import attrgetter
from typing import Annotated

import typer

from amend.commands import output
from amend.commands.connection import Connection, option
from amend.commands.erasures import ErasureId
from amend.responses import Year

Html = Annotated[str | None, option("--html", "Write an HTML document to this file; - for standard output.", "FILE")]
LetterKind = Annotated[str, typer.Argument(metavar="KIND", help="confirmation, extension, completion or withdrawal.")]

YEAR_COLUMNS: output.Columns[Year] = {
    name.replace("_", " "): attrgetter(name)
    for name in (
        *("year", "received", "completed", "refused", "withdrawn", "open", "extended", "late", "median_days"),
        *("restrictions", "accesses", "corrections"),
    )
}


def receipt(
    connection: Connection,
    id: ErasureId,
    html: Html = None,
    subjects: Annotated[
        list[str] | None,
        option("--subject", "With --html: print this identifier, as spelt in the request. Can be repeated.", "SUBJECT"),
    ] = None,
) -> None:
    """Print the receipt of a completed erasure, as JSON or as an HTML page. It does not contain the person's name.

    Example: amend erasures receipt 0b6f9c52-3d1e-4f7a-9c84-5e2a7d10f3b6 --html receipt.html --subject user-7
    """

    def page(id: str) -> str:
        return connection.client.receipt_page(id, subjects=subjects or ())

    show_document(connection, id, connection.client.receipt, page, html)


def notices(connection: Connection, id: ErasureId) -> None:
    """Print drafts of notices to the recipients of copies of the erased data (GDPR Art. 19).

    Example: amend erasures notices 0b6f9c52-3d1e-4f7a-9c84-5e2a7d10f3b6
    """
    found = connection.client.notices(id)
    if connection.as_json:
        output.print_json(connection.response)
    elif found:
        typer.echo("\n".join(f"To the holder of the API key {one.name or one.key}\n\n{one.text}" for one in found))
    else:
        typer.echo("The receipt lists no copies, so there is nobody to notify.")


def refusal(connection: Connection, id: ErasureId, html: Html = None) -> None:
    """Print the notice to a person whose request was refused, as JSON or as an HTML letter.

    Example: amend erasures refusal 0b6f9c52-3d1e-4f7a-9c84-5e2a7d10f3b6 --html letter.html
    """
    show_document(connection, id, connection.client.refusal, connection.client.refusal_page, html)


def bundle(
    connection: Connection,
    id: ErasureId,
    to: Annotated[str | None, option("--to", "Default: erasure-ID.zip; - for standard output.", "FILE")] = None,
    rows: Annotated[
        bool, option("--rows", "Include the retained rows, which are data of other people. Requires the scope admin.")
    ] = False,
    older_size: Annotated[
        int | None, option("--from", "Size of an older head. Adds the proof that the register extends it.", "SIZE")
    ] = None,
) -> None:
    """Download the evidence about an erasure as a zip file, which `amend verify` checks offline.

    Example: amend erasures bundle 0b6f9c52-3d1e-4f7a-9c84-5e2a7d10f3b6 --to evidence.zip
    """
    content = connection.client.bundle(id, rows=rows, older_size=older_size)
    file = to or f"erasure-{id}.zip"
    connection.save(content, file, f"Wrote {file}, {len(content):,} bytes.")


def letter(connection: Connection, id: ErasureId, kind: LetterKind, html: Html = None) -> None:
    """Print a letter to the person about an erasure, as JSON or as an HTML page with the controller's address.

    Example: amend erasures letter 0b6f9c52-3d1e-4f7a-9c84-5e2a7d10f3b6 confirmation --html letter.html
    """
    client = connection.client
    show_document(connection, id, lambda id: client.letter(id, kind), lambda id: client.letter_page(id, kind), html)


def statistics(connection: Connection) -> None:
    """Show the number of requests by the year in which they were received.

    Example: amend erasures statistics
    """
    years = connection.client.erasure_statistics()
    if connection.as_json:
        output.print_json(connection.response)
    else:
        output.print_table(years, YEAR_COLUMNS)


def register(
    connection: Connection,
    to: Annotated[str, option("--to", "Default: -, standard output.", "FILE")] = "-",
    year: Annotated[int | None, option("--year", "Only requests received in this year (UTC).")] = None,
) -> None:
    """Export the register of requests as a CSV file: erasures and restrictions of processing.

    Example: amend erasures register --year 2026 --to requests.csv
    """
    connection.save(connection.client.export_register(year=year).encode(), to)


def show_document(
    connection: Connection, id: str, ask: Callable[[str], object], ask_page: Callable[[str], str], html: str | None
) -> None:
    """Print a document about an erasure as JSON, or write it as an HTML page."""
    if html is None:
        ask(id)
        output.print_json(connection.response)
    else:
        connection.save(ask_page(id).encode(), html)
