"""``amend models``: create, change, adapt, retrain and delete models."""

from typing import Annotated

import typer

from amend.client import Client
from amend.commands import output
from amend.commands.arguments import parse_json, parse_kind, read_table
from amend.commands.connection import After, Connection, Limit, Yes, command, confirm, fail, option
from amend.commands.jobs import Wait, finish
from amend.dataframe_schema import read_schema
from amend.requests import path, without_none
from amend.responses import (
    Change,
    Changed,
    Model,
    Removed,
    Replaced,
    ReturnedDecision,
)

app = typer.Typer(help="Create, change, adapt, retrain and delete models.", no_args_is_help=True)

Name = Annotated[str, typer.Argument(metavar="MODEL", help="Name of the model.")]


Architecture = Annotated[str | None, option("--architecture", "linear, mlp, ... or JSON. Default: linear.", "JSON")]
Regularizer = Annotated[str | None, option("--regularizer", 'Such as {"kind": "l2", "delta": 5}.', "JSON")]
Loss = Annotated[str | None, option("--loss", "squared_hinge, huber or JSON. Default: the loss of the target.", "JSON")]
EXCLUDED = "Column to exclude from the features: the {} (with --from)."

COLUMNS: output.Columns[Model] = {
    "name": lambda model: model.name,
    "architecture": lambda model: model.architecture.get("kind"),
    "target": lambda model: model.target.get("kind"),
    "examples": lambda model: model.counts.train,
    "holdout": lambda model: model.counts.holdout,
    "head": lambda model: model.head,
    "pending": lambda model: model.pending,
    "champion": lambda model: "withdrawn" if model.withdrawn else model.champion,
    "held": lambda model: model.held.reason if model.held else None,
    "created": lambda model: output.format_time(model.created_at),
}

CHANGE_COLUMNS: output.Columns[Change] = {
    "position": lambda change: change.position,
    "kind": lambda change: change.kind,
    "value": lambda change: change.value if change.examples is None else f"{change.examples} examples",
    "created": lambda change: output.format_time(change.created_at),
}


@command(app, "list")
def list_(connection: Connection, limit: Limit = None, after: After = None) -> None:
    """List the models that your key may see.

    Example: amend models list
    """
    connection.show_page(Client.models, COLUMNS, limit, after)


@command(app)
def show(connection: Connection, model: Name) -> None:
    """Show a model: spec, policy, counts, champion and pending changes.

    Example: amend models show churn
    """
    connection.client.model(model)
    connection.show(connection.response)


@command(app)
def create(
    connection: Connection,
    model: Name,
    spec: Annotated[
        str | None, option("--spec", "JSON with any of the fields below. Options override it.", "FILE")
    ] = None,
    input_: Annotated[str | None, option("--input", 'Such as {"kind": "vector", "dim": 64}.', "JSON")] = None,
    target: Annotated[
        str | None, option("--target", "binary, number, count, JSON; or a column (with --from).", "JSON")
    ] = None,
    from_: Annotated[
        str | None, option("--from", "Infer input and target from a .parquet, .csv or .arrow file.", "FILE")
    ] = None,
    id_: Annotated[str | None, option("--id", EXCLUDED.format("ids"), "COLUMN")] = None,
    subject: Annotated[str | None, option("--subject", EXCLUDED.format("subjects"), "COLUMN")] = None,
    weight: Annotated[str | None, option("--weight", EXCLUDED.format("weights"), "COLUMN")] = None,
    target_kind: Annotated[
        str | None,
        option("--target-kind", "Kind of the target: binary, classes, labels, number or count (with --from).", "KIND"),
    ] = None,
    architecture: Architecture = None,
    regularizer: Regularizer = None,
    loss: Loss = None,
    class_weight: Annotated[
        str | None, option("--class-weight", 'Class weights, such as {"fraud": 20}.', "JSON")
    ] = None,
    training: Annotated[str | None, option("--training", "Optimiser settings and seed.", "JSON")] = None,
    policy: Annotated[str | None, option("--policy", "When to adapt, retrain and promote.", "JSON")] = None,
) -> None:
    """Create a model. Input and target are required; everything else has defaults. Pass JSON directly or as @FILE.

    Example: amend models create churn --from data.parquet --target left
    """
    if from_ is None:
        if id_ or subject or weight or target_kind:
            fail("--id, --subject, --weight and --target-kind require --from.")
        if spec is None and (input_ is None or target is None):
            fail("Give --from FILE and --target COLUMN, or --input and --target.")
        inferred = {"input": parse_kind(input_, "--input"), "target": parse_kind(target, "--target")}
    elif target is None:
        fail("Name the target column of the file with --target.")
    elif input_ is not None:
        fail("Omit --input: --from infers the input from the file.")
    else:
        try:
            names = {"id": id_, "subject": subject, "weight": weight}
            schema = read_schema(read_table(from_), target, **names, target_kind=target_kind)
        except ValueError as error:
            fail(f"{from_}: {error}")
        for line in str(schema).splitlines():
            output.note(line)
        inferred = {"input": schema.input, "target": schema.target}
    parts = inferred | {
        "architecture": parse_kind(architecture, "--architecture"),
        "regularizer": parse_kind(regularizer, "--regularizer"),
        "loss": parse_kind(loss, "--loss"),
        "class_weight": parse_json(class_weight, "--class-weight") if class_weight else None,
        "training": parse_json(training, "--training") if training else None,
        "policy": parse_json(policy, "--policy") if policy else None,
    }
    body = parse_json(spec, "--spec") if spec else {}
    if not isinstance(body, dict):
        fail("--spec must contain a JSON object.")
    body |= {"name": model} | without_none(parts)
    connection.show(connection.client.post(path("models"), body))


@command(app)
def delete(connection: Connection, model: Name, yes: Yes = False) -> None:
    """Delete a model with its examples, versions and weights.

    Example: amend models delete churn
    """

    def question() -> str:
        counts = connection.client.model(model).counts
        examples = counts.train + counts.holdout + counts.quarantined
        return f"Delete the model {model} with its {examples} examples and all its versions? This cannot be undone."

    confirm(question, yes)
    connection.client.delete_model(model)
    connection.say(None, f"Deleted {model}.")


@command(app)
def policy(
    connection: Connection,
    model: Name,
    changes: Annotated[str | None, typer.Argument(metavar="JSON", help="Fields to change, as JSON or @FILE.")] = None,
    yes: Yes = False,
) -> None:
    """Show the policy of a model, or change fields of it.

    Example: amend models policy churn '{"adapt": {"after_changes": 50}}'
    """
    client = connection.client
    changed = None if changes is None else parse_json(changes, "the policy")
    if isinstance(changed, dict) and changed.get("expire") is not None:
        confirm(f"Remove the examples of {model} as soon as they are older than {changed['expire']}?", yes)
    found = client.model(model) if changed is None else client.change_policy(model, changed)
    connection.show(found.policy)


@command(app)
def change(
    connection: Connection,
    model: Name,
    regularizer: Regularizer = None,
    architecture: Architecture = None,
    loss: Loss = None,
    input: Annotated[str | None, typer.Option("--input", metavar="JSON", help="The complete new input spec.")] = None,
    add_column: Annotated[
        list[str] | None, option("--add-column", "A column to add to a table. Can be repeated.", "JSON")
    ] = None,
    drop_column: Annotated[
        list[str] | None, option("--drop-column", "Name of a column to drop. Can be repeated.", "NAME")
    ] = None,
    target: Annotated[
        str | None, typer.Option("--target", metavar="JSON", help="The complete new target spec.")
    ] = None,
    revert: Annotated[
        int | None, typer.Option("--revert", metavar="POSITION", min=1, help="Revert the change at this position.")
    ] = None,
    wait: Wait = False,
    yes: Yes = False,
) -> None:
    """Change the regularizer, architecture, loss, columns or classes of a model, or revert a change; then adapt it.

    Example: amend models change churn --regularizer '{"kind": "l2", "delta": 10}' --wait
    """
    if not any((regularizer, architecture, loss, input, add_column, drop_column, target, revert)):
        fail(
            "Nothing to change. Use --regularizer, --architecture, --loss, --input, --add-column, --drop-column,"
            " --target or --revert."
        )
    if drop_column:
        named = f"the column{'s' * (len(drop_column) > 1)} {', '.join(drop_column)}"
        confirm(f"Drop {named} of {model}? Adding a column of the same name and type restores its values.", yes)
    if revert is not None and not yes and adds_columns(connection, model, revert):
        confirm(f"Revert the change at position {revert} of {model}? The columns that it added are dropped.", yes)
    changed = connection.client.change_model(
        model,
        regularizer=parse_kind(regularizer, "--regularizer"),
        architecture=parse_kind(architecture, "--architecture"),
        loss=parse_kind(loss, "--loss"),
        input=parse_kind(input, "--input"),
        target=parse_kind(target, "--target"),
        revert=revert,
        add_columns=[parse_json(column, "--add-column") for column in add_column] if add_column else None,
        drop_columns=drop_column or None,
    )
    if changed.dropped:
        output.note(
            f"Columns dropped: {', '.join(changed.dropped)}; added: {', '.join(changed.added or []) or 'none'}."
        )
    if changed.restored:
        output.note(f"Columns restored with their values: {', '.join(changed.restored)}.")
    follow_up(connection, changed, wait)


def adds_columns(connection: Connection, model: str, position: int) -> bool:
    """Whether the change at a position may have added columns, which reverting it would drop."""
    pages = Client.changes.make(connection.client, model)
    found = connection.client.run(pages.page(connection.client, str(position + 1), 1)).items
    return bool(found) and found[0].position == position and found[0].kind == "input"


@command(app)
def changes(connection: Connection, model: Name, limit: Limit = None, after: After = None) -> None:
    """List changes of the regularizer, architecture, loss, columns and classes, and corrections of examples.

    Example: amend models changes churn
    """
    connection.show_page(Client.changes, CHANGE_COLUMNS, limit, after, model)


@command(app)
def hold(connection: Connection, model: Name) -> None:
    """Suspend automatic adaptations, retrains and promotions until `resume`.

    Example: amend models hold churn
    """
    held = connection.client.hold(model).held
    connection.say(connection.response, f"{model} is held. Reason: {held.reason if held else '-'}.")


@command(app)
def resume(connection: Connection, model: Name, wait: Wait = False) -> None:
    """End a hold. Work that is due starts at once.

    Example: amend models resume churn --wait
    """
    resumed = connection.client.resume(model)
    if wait and resumed.job:
        finish(connection, connection.client.job(resumed.job), wait)
    else:
        due = f"Job {resumed.job} processes the pending changes." if resumed.job else "No work is due."
        connection.say(connection.response, f"{model} is no longer held. {due}")


@command(app)
def adapt(connection: Connection, model: Name, wait: Wait = False) -> None:
    """Adapt a model to all changes so far. The first adaptation trains it.

    Example: amend models adapt churn --wait
    """
    finish(connection, connection.client.adapt(model), wait)


@command(app)
def retrain(connection: Connection, model: Name, wait: Wait = False) -> None:
    """Retrain a model from scratch and compare the adapted version with the result.

    Example: amend models retrain churn --wait
    """
    finish(connection, connection.client.retrain(model), wait)


def follow_up(connection: Connection, done: Changed | Removed | Replaced | ReturnedDecision, wait: bool) -> None:
    """Print the response to a change; with ``wait``, wait for the job that adapts the model."""
    if wait and done.job:
        finish(connection, connection.client.job(done.job), wait)
    else:
        connection.show(connection.response)
