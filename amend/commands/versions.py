"""``amend versions`` and ``amend comparisons``: what a model was and is, and how it stands to its retrains."""

from collections.abc import Callable, Iterator, Sequence
from typing import Annotated, NamedTuple

import typer

from amend import responses
from amend.client import Client
from amend.commands import output
from amend.commands.connection import After, Connection, Limit, command, fail
from amend.commands.models import Name
from amend.responses import Coefficient, Comparison, NamedCoefficient, Promotion, SideBySide, Sides

app = typer.Typer(help="See, promote and download the versions of a model.", no_args_is_help=True)
comparisons = typer.Typer(help="Adapted versions side by side with full retrains.", no_args_is_help=True)

Number = Annotated[int, typer.Argument(metavar="VERSION", min=1, help="The number of the version.")]
Version = Annotated[str, typer.Argument(metavar="VERSION", help="The number of the version, or champion.")]

COLUMNS: output.Columns[responses.Version] = {
    "version": lambda version: version.version,
    "kind": lambda version: version.kind,
    "parent": lambda version: version.parent,
    "position": lambda version: version.position,
    "state": lambda version: version.state,
    "accuracy": lambda version: version.metrics.get("accuracy"),
    "loss": lambda version: version.metrics.get("loss"),
    "relative bound": lambda version: version.certificate.relative if version.certificate else None,
    "seconds": lambda version: version.cost.seconds,
    "created": lambda version: output.format_time(version.created_at),
}
COMPARISON_COLUMNS: output.Columns[Comparison] = {
    "position": lambda item: item.position,
    "adapted": lambda item: item.adapted,
    "retrained": lambda item: item.retrained,
    "accuracy": lambda item: format_sides(item.accuracy),
    "loss": lambda item: format_sides(item.loss),
    "disagreement": lambda item: item.disagreement,
    "distance": lambda item: item.weight_distance,
    "speedup": lambda item: item.speedup,
    "within tolerance": lambda item: item.within_tolerance,
    "created": lambda item: output.format_time(item.created_at),
}
PROMOTION_COLUMNS: output.Columns[Promotion] = {
    "version": lambda item: item.version,
    "previous": lambda item: item.previous,
    "by": lambda item: item.by,
    "created": lambda item: output.format_time(item.created_at),
}
COEFFICIENT_COLUMNS: output.Columns[NamedCoefficient] = {
    "feature": lambda item: item.feature,
    "class": lambda item: item.class_,
    "coefficient": lambda item: item.coefficient,
    "standardised": lambda item: item.standardised,
}


class Line(NamedTuple):
    """One line of the table of two versions."""

    what: str
    a: object
    b: object


@command(app, "list")
def list_(connection: Connection, model: Name, limit: Limit = None, after: After = None) -> None:
    """List the versions of a model.

    Example: amend versions list churn
    """
    pages = Client.versions.make(connection.client, model)
    page = connection.client.run(pages.page(connection.client, after, limit))
    connection.show_list(page, choose_columns(page.items))


@command(app)
def show(connection: Connection, model: Name, version: Version) -> None:
    """Show a version: metrics, certificate, cost.

    Example: amend versions show churn champion
    """
    connection.client.version(model, find_number(connection, model, version))
    connection.show(connection.answer)


@command(app)
def promote(connection: Connection, model: Name, version: Number) -> None:
    """Make a version the champion, which answers predictions. An older one can be: that is a rollback, and holds.

    Example: amend versions promote churn 6
    """
    sentence = f"Version {version} is the champion of {model}."
    if connection.client.promote(model, version).held:
        sentence += f" The model is held: amend models resume {model} has it adapted again."
    connection.say(connection.answer, sentence)


@command(app)
def promotions(connection: Connection, model: Name, limit: Limit = None, after: After = None) -> None:
    """List what was champion when, and who made it so: the policy, a key, or an erasure.

    Example: amend versions promotions churn
    """
    connection.show_page(Client.promotions, PROMOTION_COLUMNS, limit, after, model)


@command(app)
def compare(
    connection: Connection,
    model: Name,
    version: Version,
    other: Annotated[str, typer.Argument(metavar="OTHER", help="The number of the other version, or champion.")],
) -> None:
    """Set two versions side by side: specs, figures and predictions on the holdout, coefficients.

    Example: amend versions compare churn 6 champion
    """
    a, b = find_number(connection, model, version), find_number(connection, model, other, "OTHER")
    pair = connection.client.compare(model, a, b)
    if connection.as_json:
        connection.show(connection.answer)
        return
    columns: output.Columns[Line] = {
        "": lambda line: line.what,
        f"version {a}": lambda line: line.a,
        f"version {b}": lambda line: line.b,
    }
    output.print_table(list(make_lines(pair)), columns)
    typer.echo(summarize(pair))


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
    number = find_number(connection, model, version)
    content = connection.client.weights(model, number)
    file = to or f"{model}-{number}.safetensors"
    connection.save(content, file, f"Wrote {file}, {len(content):,} bytes.")


@command(app)
def export(
    connection: Connection,
    model: Name,
    version: Version,
    onnx: Annotated[str, typer.Option("--onnx", metavar="FILE", help="Where the ONNX file goes; -: stdout.")],
) -> None:
    """Export a version as an ONNX file: raw inputs in, predictions out. It takes a key with the scope `weights`.

    Example: amend versions export churn champion --onnx churn.onnx
    """
    content = connection.client.export_onnx(model, find_number(connection, model, version))
    connection.save(content, onnx, f"Wrote {onnx}, {len(content):,} bytes.")


@command(app)
def coefficients(connection: Connection, model: Name, version: Version) -> None:
    """List the coefficients of a linear model by name, for each unit of the inputs and of what the model measures in.

    It takes a key with the scope `weights`.

    Example: amend versions coefficients churn champion
    """
    found = connection.client.coefficients(model, find_number(connection, model, version))
    if connection.as_json:
        connection.show(connection.answer)
        return
    classes = any(item.class_ is not None for item in found)
    columns = {name: of for name, of in COEFFICIENT_COLUMNS.items() if classes or name != "class"}
    output.print_table(found, columns)


@command(comparisons, "list")
def list_comparisons(connection: Connection, model: Name, limit: Limit = None, after: After = None) -> None:
    """List the comparisons of a model; two figures are those of the adapted version and of the retrain.

    Example: amend comparisons list churn
    """
    connection.show_page(Client.comparisons, COMPARISON_COLUMNS, limit, after, model)


def choose_columns(versions: Sequence[responses.Version]) -> output.Columns[responses.Version]:
    """The columns of a list of versions: beside losses of different kinds, which are not compared, that of each."""
    if len({name_loss(version) for version in versions}) < 2:
        return COLUMNS
    columns = dict[str, Callable[[responses.Version], object]]()
    for name, of in COLUMNS.items():
        columns[name] = of
        if name == "loss":
            columns["kind of loss"] = name_loss
    return columns


def name_loss(version: responses.Version) -> str:
    """As ``huber 1.35``."""
    return " ".join(output.format_value(value) for value in version.spec.get("loss", {}).values())


def find_number(connection: Connection, model: str, version: str, argument: str = "VERSION") -> int:
    """The number of a version that is named by it, or as the champion."""
    if version == "champion":
        found = connection.client.model(model)
        if found.withdrawn:
            fail(f"{model} was withdrawn: its last training example has gone")
        return found.champion if found.champion is not None else fail(f"{model} has no champion yet")
    if not version.isdecimal() or int(version) < 1:
        raise typer.BadParameter(f"{version!r} is neither a version's number nor champion.", param_hint=argument)
    return int(version)


def make_lines(pair: SideBySide) -> Iterator[Line]:
    """The lines of two versions' table: what differs between the specs, figures, the coefficients that differ most."""
    yield Line("kind", pair.a.kind, pair.b.kind)
    yield Line("position", pair.a.position, pair.b.position)
    yield Line("state", pair.a.state, pair.b.state)
    for difference in pair.differences:
        yield Line(difference.field, difference.a, difference.b)
    for name, figure in pair.figures.items():
        yield Line(name, figure.a, figure.b)
    for item in pick_differing(pair):
        of = "" if item.class_ is None else f" (class {item.class_})"
        yield Line(f"weight of {item.feature}{of}", item.a, item.b)


def pick_differing(pair: SideBySide) -> list[Coefficient]:
    """The coefficients that differ in the digits that are shown."""
    shown = output.format_value
    return [item for item in pair.coefficients or () if shown(item.a) != shown(item.b)]


def summarize(pair: SideBySide) -> str:
    """How far the predictions of two versions differ."""
    if not pair.rows:
        if any(difference.field.startswith(("input.", "target.")) for difference in pair.differences):
            return "They read other columns or classes: there are no rows to compare predictions on."
        return "There is no holdout to compare predictions on."
    shown = output.format_value
    sentence = f"On {pair.rows} rows of the holdout: disagreement {shown(pair.disagreement)} "
    sentence += f"(standard error {shown(pair.disagreement_se)}), "
    sentence += f"largest change of a prediction {shown(pair.largest_change)}."
    count, total = len(pick_differing(pair)), pair.coefficients_total or 0
    if total and not count:
        return f"{sentence} No weight differs in the digits that would be shown."
    return sentence + (f" {count} of {total} weights are shown: those that differ most." if count < total else "")


def format_sides(sides: Sides | None) -> str:
    """The figure of the adapted version and that of the retrain."""
    figures = (sides.adapted, sides.retrained) if sides else (None, None)
    return " / ".join(output.format_value(figure) for figure in figures)
