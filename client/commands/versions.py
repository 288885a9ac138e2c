"""``amend versions`` and ``amend comparisons``: what a model was and is, and how it stands to its retrains."""

import sys
from pathlib import Path
from typing import Annotated

import typer

from client.commands import output
from client.commands.connection import After, Connection, Limit, command, fail
from client.commands.models import Name
from client.flows import path

app = typer.Typer(help="See, promote and download the versions of a model.", no_args_is_help=True)
comparisons = typer.Typer(help="Adapted versions side by side with full retrains.", no_args_is_help=True)

Number = Annotated[int, typer.Argument(metavar="VERSION", min=1, help="The number of the version.")]

COLUMNS: output.Columns = {
    "version": "version",
    "kind": "kind",
    "parent": "parent",
    "position": "position",
    "state": "state",
    "accuracy": "metrics.accuracy",
    "loss": "metrics.loss",
    "relative bound": "certificate.relative",
    "seconds": "cost.seconds",
    "created": output.moment("created_at"),
}
COMPARISON: output.Columns = {
    "position": "position",
    "adapted": "adapted",
    "retrained": "retrained",
    "accuracy": lambda item: both(item, "accuracy"),
    "loss": lambda item: both(item, "loss"),
    "disagreement": "disagreement",
    "distance": "weight_distance",
    "speedup": "speedup",
    "within tolerance": "within_tolerance",
    "created": output.moment("created_at"),
}


@command(app, "list")
def list_(connection: Connection, model: Name, limit: Limit = None, after: After = None) -> None:
    """List the versions of a model.

    Example: amend versions list churn
    """
    answer = connection.client.get(path("models", model, "versions"), limit=limit, after=after)
    connection.show_list(answer, COLUMNS)


@command(app)
def show(connection: Connection, model: Name, version: Number) -> None:
    """Show a version: metrics, certificate, cost.

    Example: amend versions show churn 7
    """
    connection.show(connection.client.get(path("models", model, "versions", version)))


@command(app)
def promote(connection: Connection, model: Name, version: Number) -> None:
    """Make a version the champion, which answers predictions. An older one can be: that is a rollback.

    Example: amend versions promote churn 6
    """
    answer = connection.client.post(path("models", model, "versions", version, "promote"))
    connection.say(answer, f"Version {version} is the champion of {model}.")


@command(app)
def weights(
    connection: Connection,
    model: Name,
    version: Number,
    to: Annotated[
        str | None,
        typer.Option("--output", "-o", metavar="FILE", help="Default: MODEL-VERSION.safetensors; -: stdout."),
    ] = None,
) -> None:
    """Download the weights of a version, a safetensors file. It takes a key with the scope `weights`.

    Example: amend versions weights churn 7 --output churn.safetensors
    """
    content = connection.client.request("GET", path("models", model, "versions", version, "weights")).content
    if to == "-":
        sys.stdout.buffer.write(content)
        return
    file = Path(to or f"{model}-{version}.safetensors")
    try:
        file.write_bytes(content)
    except OSError as error:
        fail(f"cannot write {file}: {error.strerror}")
    connection.say({"file": str(file), "bytes": len(content)}, f"Wrote {file}, {len(content):,} bytes.")


@command(comparisons, "list")
def list_comparisons(connection: Connection, model: Name, limit: Limit = None, after: After = None) -> None:
    """List the comparisons of a model; two figures are those of the adapted version and of the retrain.

    Example: amend comparisons list churn
    """
    answer = connection.client.get(path("models", model, "comparisons"), limit=limit, after=after)
    connection.show_list(answer, COMPARISON)


def both(item: dict[str, object], name: str) -> str:
    """The figure of the adapted version and that of the retrain."""
    figures = (output.find(item, f"{name}.{which}") for which in ("adapted", "retrained"))
    return " / ".join(output.format_value(figure) for figure in figures)
