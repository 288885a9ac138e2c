"""``amend receipts`` and ``amend register``: the evidence about erasures."""

import json
from pathlib import Path
from typing import Annotated, Any

import typer

from amend.client import Client
from amend.commands import output
from amend.commands.connection import After, Connection, Limit, command, fail, option
from amend.responses import Flaw, ReceiptItem

app = typer.Typer(help="Show the signed register of erasures.", no_args_is_help=True)
receipts = typer.Typer(help="List and verify the receipts of erasures.", no_args_is_help=True)

HeadFile = Annotated[str | None, option("--to", "File to write; - for standard output. Default: print it.", "FILE")]
RECEIPT_COLUMNS: output.Columns[ReceiptItem] = {
    "number": lambda receipt: receipt.number,
    "erasure": lambda receipt: receipt.erasure,
    "completed": lambda receipt: receipt.completed_at,
    "leaf": lambda receipt: receipt.leaf,
    "sha256": lambda receipt: receipt.sha256,
}
FLAW_COLUMNS: output.Columns[Flaw] = {
    "leaf": lambda flaw: flaw.leaf,
    "receipt": lambda flaw: flaw.receipt,
    "problem": lambda flaw: flaw.problem,
}


@command(receipts, "list")
def list_receipts(connection: Connection, limit: Limit = 20, after: After = None) -> None:
    """List the receipts, newest first.

    Example: amend receipts list
    """
    connection.show_page(Client.receipts, RECEIPT_COLUMNS, limit, after)


@command(receipts)
def verify(
    connection: Connection,
    head: Annotated[Path | None, option("--head", "Signed head that you kept: the register must extend it.")] = None,
) -> None:
    """Verify the register and all receipts on the server; exit with status 1 if anything is missing or altered.

    Example: amend receipts verify --head head.json
    """
    result = connection.client.verify_receipts(None if head is None else read_head(head))
    for name in result.strays:
        output.note(f"Stray file in the store: {name}")
    count = f"{result.receipts} {'receipt' if result.receipts == 1 else 'receipts'}, {result.leaves} leaves"
    if result.valid:
        connection.say(connection.response, f"The register is valid: {count}, root {result.head['root']}.")
        return
    if connection.as_json:
        output.print_json(connection.response)
    else:
        output.print_table(result.flaws, FLAW_COLUMNS)
    fail(f"The register of {count} is not valid.")


def read_head(path: Path) -> dict[str, Any]:
    """Read a signed head, or the head of an acknowledgement, from a file."""
    try:
        found = json.loads(path.read_bytes())
        head: dict[str, Any] = found.get("head", found)
        return {"size": int(head["size"]), "root": str(head["root"])}
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        fail(f"{path} is not a signed head in JSON.")


@command(app)
def head(connection: Connection, to: HeadFile = None) -> None:
    """Print the newest signed head of the register, or write it to a file. Keep it where the operator cannot change it.

    Example: amend register head --to head.json
    """
    show_or_save(connection, connection.client.register_head(), to)


@command(app)
def key(connection: Connection, to: HeadFile = None) -> None:
    """Print the public key of the register and the keys that it replaced, or write them to a file.

    Example: amend register key --to key.json
    """
    show_or_save(connection, connection.client.register_key(), to)


def show_or_save(connection: Connection, document: dict[str, Any], to: str | None) -> None:
    if to is None:
        output.print_json(document)
    else:
        connection.save(json.dumps(document, indent=2).encode(), to, f"Wrote {to}.")
