"""The command `amend verify`: checks an erasure bundle offline."""

from pathlib import Path
from typing import Annotated

import typer

from amend.commands import output
from amend.commands.connection import fail
from amend.errors import AmendError


def verify(
    bundle: Annotated[Path, typer.Argument(help="Bundle of an erasure: the zip file that the service provides.")],
    key: Annotated[
        Path | None,
        typer.Option(
            "--key",
            help="Public key of the register (PEM, or JSON of GET /v1/register/key), from a source that you trust.",
        ),
    ] = None,
    head: Annotated[
        Path | None,
        typer.Option("--head", help="Older signed head, or an acknowledgement, that the register must extend (JSON)."),
    ] = None,
    refit: Annotated[
        bool,
        typer.Option("--refit", help="Minimise the objective of certified models on the rows in the bundle."),
    ] = False,
    authority: Annotated[
        Path | None,
        typer.Option("--authority", help="Certificates of the time stamping authority (PEM), to check time stamps."),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the result as JSON.")] = False,
) -> None:
    """Verify the bundle of an erasure offline, and exit with status 0 only if every check passes.

    Requires the extra `verify` of the package, but neither a running service nor the server's packages.

    Example: amend verify bundle.zip --key register.pem --refit
    """
    from amend.verification import verify_bundle

    try:
        found = verify_bundle(bundle, key, head, authority, refit)
    except AmendError as error:
        fail(str(error))
    if as_json:
        checks = [{**vars(check), "result": check.result.value} for check in found.checks]
        output.print_json({"passed": found.passed, "checks": checks, "unproven": found.unproven})
        raise typer.Exit(0 if found.passed else 1)
    columns = {
        "check": lambda check: check.what,
        "method": lambda check: check.means,
        "result": lambda check: f"{check.result.value}: {check.detail}" if check.detail else check.result.value,
    }
    output.print_table(found.checks, columns)
    if found.unproven:
        typer.echo("\nNot proven:")
    for sentence in found.unproven:
        typer.echo(f"- {output.printable(sentence)}")
    typer.echo("\nEvery check passed." if found.passed else "\nNot every check passed.")
    raise typer.Exit(0 if found.passed else 1)
