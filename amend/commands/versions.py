"""``amend versions`` and ``amend comparisons``: versions of a model, and comparisons with full retrains."""

from collections.abc import Callable, Iterator, Sequence
from typing import Annotated, NamedTuple

import typer

from amend import responses
from amend.client import Client
from amend.commands import output
from amend.commands.connection import After, Connection, Limit, Yes, command, confirm, fail
from amend.commands.models import Name
from amend.responses import Coefficient, Comparison, NamedCoefficient, Promotion, SideBySide, Sides

app = typer.Typer(help="List, compare, promote and download the versions of a model.", no_args_is_help=True)
comparisons = typer.Typer(help="Compare adapted versions with full retrains.", no_args_is_help=True)

Number = Annotated[int, typer.Argument(metavar="VERSION", min=1, help="Number of the version.")]
Version = Annotated[str, typer.Argument(metavar="VERSION", help="Number of the version, or `champion`.")]

COLUMNS: output.Columns[responses.Version] = {
    "version": lambda version: version.version,
    "kind": lambda version: version.kind,
    "parent": lambda version: version.parent,
    "position": lambda version: version.position,
    "state": lambda version: version.state,
    "metric": lambda version: version.headline,
    "value": lambda version: version.metrics.get(version.headline or ""),
    "baseline": lambda version: version.metrics.get(f"baseline_{version.headline}"),
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
    """One row of the table that compares two versions."""

    what: str
    a: object
    b: object


@command(app, "list")
def list_(connection: Connection, model: Name, limit: Limit = None, after: After = None) -> None:
    """List the versions of a model, newest first.

    Example: amend versions list churn
    """
    pages = Client.versions.make(connection.client, model)
    page = connection.client.run(pages.page(connection.client, after, limit))
    connection.show_list(page, choose_columns(page.items))


@command(app)
def show(connection: Connection, model: Name, version: Version) -> None:
    """Show a version: metrics, certificate and cost.

    Example: amend versions show churn champion
    """
    connection.client.version(model, find_number(connection, model, version))
    connection.show(connection.response)


@command(app)
def promote(connection: Connection, model: Name, version: Number) -> None:
    """Make a version the champion, which serves predictions. Promoting an older version (a rollback) holds the model.

    Example: amend versions promote churn 6
    """
    promoted = connection.client.promote(model, version)
    if promoted.job is not None:
        rebuilt = f"Version {version} was purged. The job {promoted.job} trains a new version at position "
        connection.say(connection.response, f"{rebuilt}{promoted.position} and promotes it.")
        return
    sentence = f"Version {version} is the champion of {model}."
    if promoted.held:
        sentence += f" The model is held. To resume automatic work: amend models resume {model}"
    connection.say(connection.response, sentence)


@command(app)
def accept(connection: Connection, model: Name, version: Number) -> None:
    """Accept a version that the promotion gate rejected: put its examples back into force and promote it.

    Example: amend versions accept churn 6
    """
    decision = connection.client.accept(model, version)
    connection.say(connection.response, f"Accepted version {version}: {decision.examples} examples are in force again.")


@command(app)
def discard(connection: Connection, model: Name, version: Number, yes: Yes = False) -> None:
    """Discard a version that the promotion gate rejected: remove the examples that it learnt.

    Example: amend versions discard churn 6
    """

    def question() -> str:
        quarantined = connection.client.version(model, version).quarantined
        return f"Remove the {quarantined} quarantined examples of version {version} of {model}?"

    confirm(question, yes)
    decision = connection.client.discard(model, version)
    connection.say(connection.response, f"Discarded version {version}: {decision.examples} examples were removed.")


@command(app)
def promotions(connection: Connection, model: Name, limit: Limit = None, after: After = None) -> None:
    """List the promotions of a model, and what caused them: the policy, an API key or an erasure.

    Example: amend versions promotions churn
    """
    connection.show_page(Client.promotions, PROMOTION_COLUMNS, limit, after, model)


@command(app)
def compare(
    connection: Connection,
    model: Name,
    version: Version,
    other: Annotated[str, typer.Argument(metavar="OTHER", help="Number of the other version, or `champion`.")],
) -> None:
    """Compare two versions: specs, holdout metrics, holdout predictions and coefficients.

    Example: amend versions compare churn 6 champion
    """
    a, b = find_number(connection, model, version), find_number(connection, model, other, "OTHER")
    pair = connection.client.compare(model, a, b)
    if connection.as_json:
        connection.show(connection.response)
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
        typer.Option("--output", "-o", metavar="FILE", help="Default: MODEL-VERSION.safetensors; - for stdout."),
    ] = None,
) -> None:
    """Download the weights of a version as a safetensors file. Requires a key with the scope `weights`.

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
    onnx: Annotated[str, typer.Option("--onnx", metavar="FILE", help="File to write; - for standard output.")],
) -> None:
    """Export a version as an ONNX file, from raw inputs to predictions. Requires a key with the scope `weights`.

    Example: amend versions export churn champion --onnx churn.onnx
    """
    content = connection.client.export_onnx(model, find_number(connection, model, version))
    connection.save(content, onnx, f"Wrote {onnx}, {len(content):,} bytes.")


@command(app)
def coefficients(connection: Connection, model: Name, version: Version) -> None:
    """List the coefficients of a linear model by name, per unit of the input and per standardised unit.

    Requires a key with the scope `weights`.

    Example: amend versions coefficients churn champion
    """
    found = connection.client.coefficients(model, find_number(connection, model, version))
    if connection.as_json:
        connection.show(connection.response)
        return
    classes = any(item.class_ is not None for item in found)
    columns = {name: of for name, of in COEFFICIENT_COLUMNS.items() if classes or name != "class"}
    output.print_table(found, columns)


@command(comparisons, "list")
def list_comparisons(connection: Connection, model: Name, limit: Limit = None, after: After = None) -> None:
    """List the comparisons of a model. In each pair of values, the adapted version comes first.

    Example: amend comparisons list churn
    """
    connection.show_page(Client.comparisons, COMPARISON_COLUMNS, limit, after, model)


def choose_columns(versions: Sequence[responses.Version]) -> output.Columns[responses.Version]:
    """The columns of a list of versions, with the kind of loss if the versions differ in it."""
    if len({name_loss(version) for version in versions}) < 2:
        return COLUMNS
    columns = dict[str, Callable[[responses.Version], object]]()
    for name, of in COLUMNS.items():
        columns[name] = of
        if name == "loss":
            columns["kind of loss"] = name_loss
    return columns


def name_loss(version: responses.Version) -> str:
    """The loss and its parameters, such as ``huber 1.35``."""
    return " ".join(output.format_value(value) for value in version.spec.get("loss", {}).values())


def find_number(connection: Connection, model: str, version: str, argument: str = "VERSION") -> int:
    """The number of a version that is given as a number or as ``champion``."""
    if version == "champion":
        found = connection.client.model(model)
        if found.withdrawn:
            fail(f"{model} was withdrawn: its last training example was removed.")
        return found.champion if found.champion is not None else fail(f"{model} has no champion yet.")
    if not version.isdecimal() or int(version) < 1:
        raise typer.BadParameter(f"{version!r} is neither a version number nor `champion`.", param_hint=argument)
    return int(version)


def make_lines(pair: SideBySide) -> Iterator[Line]:
    """The rows that compare two versions: differences of the specs, metrics, coefficients that differ most."""
    yield Line("kind", pair.a.kind, pair.b.kind)
    yield Line("position", pair.a.position, pair.b.position)
    yield Line("state", pair.a.state, pair.b.state)
    for difference in pair.differences:
        yield Line(difference.field, difference.a, difference.b)
    for name, metric in pair.metrics.items():
        yield Line(name, metric.a, metric.b)
    for item in pick_differing(pair):
        of = "" if item.class_ is None else f" (class {item.class_})"
        yield Line(f"coefficient of {item.feature}{of}", item.a, item.b)


def pick_differing(pair: SideBySide) -> list[Coefficient]:
    """The coefficients that differ in the displayed digits."""
    shown = output.format_value
    return [item for item in pair.coefficients or () if shown(item.a) != shown(item.b)]


def summarize(pair: SideBySide) -> str:
    """How much the predictions of two versions differ."""
    if not pair.rows:
        if any(difference.field.startswith(("input.", "target.")) for difference in pair.differences):
            return "The versions have different columns or classes, so their predictions cannot be compared."
        return "There are no holdout examples to compare predictions on."
    shown = output.format_value
    sentence = f"On {pair.rows} holdout examples: disagreement {shown(pair.disagreement)} "
    sentence += f"(standard error {shown(pair.disagreement_se)}), "
    sentence += f"largest difference between predictions {shown(pair.largest_change)}."
    count, total = len(pick_differing(pair)), pair.coefficients_total or 0
    if total and not count:
        return f"{sentence} No coefficient differs in the displayed digits."
    return sentence + (f" Shown are the {count} of {total} coefficients that differ most." if count < total else "")


def format_sides(sides: Sides | None) -> str:
    """The values of the adapted version and of the retrain."""
    values = (sides.adapted, sides.retrained) if sides else (None, None)
    return " / ".join(map(output.format_value, values))
