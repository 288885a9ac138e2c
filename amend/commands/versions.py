"""``amend versions`` and ``amend comparisons``: what a model was and is, and how it stands to its retrains."""

from collections.abc import Iterator
from typing import Annotated, Any

import typer

from amend.commands import output
from amend.commands.connection import After, Connection, Limit, command, fail
from amend.commands.models import Name
from amend.sansio import path

app = typer.Typer(help="See, promote and download the versions of a model.", no_args_is_help=True)
comparisons = typer.Typer(help="Adapted versions side by side with full retrains.", no_args_is_help=True)

Number = Annotated[int, typer.Argument(metavar="VERSION", min=1, help="The number of the version.")]
Version = Annotated[str, typer.Argument(metavar="VERSION", help="The number of the version, or champion.")]

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
def show(connection: Connection, model: Name, version: Version) -> None:
    """Show a version: metrics, certificate, cost.

    Example: amend versions show churn champion
    """
    number = number_of(connection, model, version)
    connection.show(connection.client.get(path("models", model, "versions", number)))


@command(app)
def promote(connection: Connection, model: Name, version: Number) -> None:
    """Make a version the champion, which answers predictions. An older one can be: that is a rollback, and holds.

    Example: amend versions promote churn 6
    """
    answer = connection.client.post(path("models", model, "versions", version, "promote"))
    said = f"Version {version} is the champion of {model}."
    if answer.get("held"):
        said += f" The model is held: amend models resume {model} has it adapted again."
    connection.say(answer, said)


@command(app)
def compare(
    connection: Connection,
    model: Name,
    version: Number,
    other: Annotated[int, typer.Argument(metavar="OTHER", min=1, help="The number of the other version.")],
) -> None:
    """Set two versions side by side: specs, figures and predictions on the holdout, coefficients.

    Example: amend versions compare churn 6 7
    """
    answer = connection.client.get(path("models", model, "versions", version, "compare", other))
    if connection.as_json:
        connection.show(answer)
        return
    columns: output.Columns = {"": "what", f"version {version}": "a", f"version {other}": "b"}
    output.print_table(list(side_by_side(answer)), columns)
    typer.echo(summary(answer))


@command(app)
def weights(
    connection: Connection,
    model: Name,
    version: Version,
    to: Annotated[
        str | None,
        typer.Option("--output", "-o", metavar="FILE", help="Default: MODEL-VERSION.safetensors; -: stdout."),
    ] = None,
) -> None:
    """Download the weights of a version, a safetensors file. It takes a key with the scope `weights`.

    Example: amend versions weights churn champion --output churn.safetensors
    """
    number = number_of(connection, model, version)
    content = connection.client.request("GET", path("models", model, "versions", number, "weights")).content
    file = to or f"{model}-{number}.safetensors"
    connection.save(content, file, f"Wrote {file}, {len(content):,} bytes.")


@command(comparisons, "list")
def list_comparisons(connection: Connection, model: Name, limit: Limit = None, after: After = None) -> None:
    """List the comparisons of a model; two figures are those of the adapted version and of the retrain.

    Example: amend comparisons list churn
    """
    answer = connection.client.get(path("models", model, "comparisons"), limit=limit, after=after)
    connection.show_list(answer, COMPARISON)


def number_of(connection: Connection, model: str, version: str) -> int:
    """The number of a version that is named by it, or as the champion."""
    if version == "champion":
        found = connection.client.get(path("models", model))["champion"]
        return int(found) if found is not None else fail(f"{model} has no champion yet")
    if not version.isdecimal() or int(version) < 1:
        raise typer.BadParameter(f"{version!r} is neither a version's number nor champion.", param_hint="VERSION")
    return int(version)


def side_by_side(answer: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """The lines of two versions' table: what differs between the specs, figures, the coefficients that differ most."""
    for name in ("kind", "position", "state"):
        yield {"what": name, "a": answer["a"][name], "b": answer["b"][name]}
    for item in answer["differences"]:
        yield {"what": item["field"], "a": item["a"], "b": item["b"]}
    for name, figure in answer["figures"].items():
        yield {"what": name, "a": figure["a"], "b": figure["b"]}
    for item in differing(answer):
        of = "" if item["class"] is None else f" (class {item['class']})"
        yield {"what": f"weight of {item['feature']}{of}", "a": item["a"], "b": item["b"]}


def differing(answer: dict[str, Any]) -> list[dict[str, Any]]:
    """The coefficients that differ in the digits that are shown."""
    shown = output.format_value
    return [item for item in answer["coefficients"] or () if shown(item["a"]) != shown(item["b"])]


def summary(answer: dict[str, Any]) -> str:
    """How far the predictions of two versions differ."""
    if not answer["rows"]:
        return "There is no holdout to compare predictions on."
    figures = [output.format_value(answer[name]) for name in ("disagreement", "disagreement_se", "largest_change")]
    said = f"On {answer['rows']} rows of the holdout: disagreement {figures[0]} (standard error {figures[1]}), "
    said += f"largest change of a prediction {figures[2]}."
    shown, total = len(differing(answer)), answer["coefficients_total"] or 0
    if total and not shown:
        return f"{said} No weight differs in the digits that would be shown."
    return said + (f" {shown} of {total} weights are shown: those that differ most." if shown < total else "")


def both(item: dict[str, object], name: str) -> str:
    """The figure of the adapted version and that of the retrain."""
    figures = (output.find(item, f"{name}.{which}") for which in ("adapted", "retrained"))
    return " / ".join(output.format_value(figure) for figure in figures)
