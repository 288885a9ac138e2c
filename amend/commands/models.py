"""``amend models``: create models, change them, and have them adapted or retrained."""

from typing import Annotated

import typer

from amend.client import Client
from amend.commands import output
from amend.commands.arguments import parse_json, parse_kind, read_table
from amend.commands.connection import After, Connection, Limit, Yes, command, confirm, fail
from amend.commands.jobs import Wait, finish
from amend.frame_schema import read_schema
from amend.responses import Change, Changed, Model, Removed, Replaced
from amend.sansio import path, without_none

app = typer.Typer(help="Create models, change them, adapt and retrain them.", no_args_is_help=True)

Name = Annotated[str, typer.Argument(metavar="MODEL", help="The model's name.")]
Architecture = Annotated[str | None, typer.Option("--architecture", metavar="JSON", help="linear, mlp ... or JSON.")]
Regularizer = Annotated[
    str | None, typer.Option("--regularizer", metavar="JSON", help='As {"kind": "l2", "delta": 5}.')
]
Loss = Annotated[
    str | None, typer.Option("--loss", metavar="JSON", help="squared_hinge, huber or JSON; default: the target's own.")
]

COLUMNS: output.Columns[Model] = {
    "name": lambda model: model.name,
    "architecture": lambda model: model.architecture.get("kind"),
    "target": lambda model: model.target.get("kind"),
    "examples": lambda model: model.counts.train,
    "holdout": lambda model: model.counts.holdout,
    "head": lambda model: model.head,
    "pending": lambda model: model.pending,
    "champion": lambda model: "withdrawn" if model.withdrawn else model.champion,
    "held": lambda model: model.held.why if model.held else None,
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
    """List the models your key can see.

    Example: amend models list
    """
    connection.show_page(Client.models, COLUMNS, limit, after)


@command(app)
def show(connection: Connection, model: Name) -> None:
    """Show a model: spec, policy, counts, champion and pending changes.

    Example: amend models show churn
    """
    connection.client.model(model)
    connection.show(connection.answer)


@command(app)
def create(
    connection: Connection,
    model: Name,
    spec: Annotated[
        str | None, typer.Option("--spec", metavar="FILE", help="JSON with any of the below; they overrule it.")
    ] = None,
    input_: Annotated[
        str | None, typer.Option("--input", metavar="JSON", help='As {"kind": "vector", "dim": 64}.')
    ] = None,
    target: Annotated[
        str | None,
        typer.Option(
            "--target", metavar="JSON", help="binary, number, count, or JSON with the classes; with --from a column."
        ),
    ] = None,
    from_: Annotated[
        str | None,
        typer.Option("--from", metavar="FILE", help="Read input and target from a .parquet, .csv or .arrow file."),
    ] = None,
    id_: Annotated[str | None, typer.Option("--id", metavar="COLUMN", help="With --from: no feature.")] = None,
    subject: Annotated[str | None, typer.Option("--subject", metavar="COLUMN", help="With --from: no feature.")] = None,
    weight: Annotated[str | None, typer.Option("--weight", metavar="COLUMN", help="With --from: no feature.")] = None,
    target_kind: Annotated[
        str | None,
        typer.Option("--target-kind", metavar="KIND", help="With --from: binary, classes, number or count."),
    ] = None,
    architecture: Architecture = None,
    regularizer: Regularizer = None,
    loss: Loss = None,
    class_weight: Annotated[
        str | None, typer.Option("--class-weight", metavar="JSON", help='As {"fraud": 20}: what counts more.')
    ] = None,
    training: Annotated[str | None, typer.Option("--training", metavar="JSON", help="Optimiser and seed.")] = None,
    policy: Annotated[
        str | None, typer.Option("--policy", metavar="JSON", help="When to adapt, retrain, promote ...")
    ] = None,
) -> None:
    """Create a model. Input and target are needed; the rest has defaults. JSON can be given as @FILE.

    Example: amend models create churn --from data.parquet --target left
    """
    if from_ is None:
        if id_ or subject or weight or target_kind:
            fail("--id, --subject, --weight and --target-kind are for --from")
        read = {"input": parse_kind(input_, "--input"), "target": parse_kind(target, "--target")}
    elif target is None or input_ is not None:
        fail("--from reads the input from the file; give the target's column with --target")
    else:
        try:
            names = {"id": id_, "subject": subject, "weight": weight}
            schema = read_schema(read_table(from_), target, **names, target_kind=target_kind)
        except ValueError as error:
            fail(f"{from_}: {error}")
        for line in str(schema).splitlines():
            output.note(line)
        read = {"input": schema.input, "target": schema.target}
    parts = read | {
        "architecture": parse_kind(architecture, "--architecture"),
        "regularizer": parse_kind(regularizer, "--regularizer"),
        "loss": parse_kind(loss, "--loss"),
        "class_weight": parse_json(class_weight, "--class-weight") if class_weight else None,
        "training": parse_json(training, "--training") if training else None,
        "policy": parse_json(policy, "--policy") if policy else None,
    }
    body = parse_json(spec, "--spec") if spec else {}
    if not isinstance(body, dict):
        fail("--spec must hold a JSON object")
    body |= {"name": model} | without_none(parts)
    connection.show(connection.client.post(path("models"), body))


@command(app)
def delete(connection: Connection, model: Name, yes: Yes = False) -> None:
    """Delete a model and all it owns: examples, versions, weights.

    Example: amend models delete churn
    """
    confirm(f"Delete the model {model} with all its examples and versions?", yes)
    connection.client.delete_model(model)
    connection.say(None, f"Deleted {model}.")


@command(app)
def policy(
    connection: Connection,
    model: Name,
    changes: Annotated[str | None, typer.Argument(metavar="JSON", help="What to change, in JSON or @FILE.")] = None,
) -> None:
    """Show a model's policy, or change parts of it.

    Example: amend models policy churn '{"adapt": {"after_changes": 50}}'
    """
    client = connection.client
    found = client.model(model) if changes is None else client.change_policy(model, parse_json(changes, "the policy"))
    connection.show(found.policy)


@command(app)
def change(
    connection: Connection,
    model: Name,
    regularizer: Regularizer = None,
    architecture: Architecture = None,
    loss: Loss = None,
    input: Annotated[
        str | None, typer.Option("--input", metavar="JSON", help="All columns that there are from now on.")
    ] = None,
    target: Annotated[
        str | None, typer.Option("--target", metavar="JSON", help="All classes that there are from now on.")
    ] = None,
    revert: Annotated[
        int | None, typer.Option("--revert", metavar="POSITION", min=1, help="Undo the change at this position.")
    ] = None,
    wait: Wait = False,
) -> None:
    """Change a model's regularizer, architecture, loss, columns or classes, or undo such a change. It is adapted.

    Example: amend models change churn --regularizer '{"kind": "l2", "delta": 10}' --wait
    """
    if (regularizer, architecture, loss, input, target, revert) == (None,) * 6:
        fail("nothing to change: give --regularizer, --architecture, --loss, --input, --target or --revert")
    changed = connection.client.change_model(
        model,
        regularizer=parse_kind(regularizer, "--regularizer"),
        architecture=parse_kind(architecture, "--architecture"),
        loss=parse_kind(loss, "--loss"),
        input=parse_kind(input, "--input"),
        target=parse_kind(target, "--target"),
        revert=revert,
    )
    if changed.dropped:
        output.note(f"columns that went: {', '.join(changed.dropped)}; that came: {', '.join(changed.added) or 'none'}")
    follow_up(connection, changed, wait)


@command(app)
def changes(connection: Connection, model: Name, limit: Limit = None, after: After = None) -> None:
    """List the changes of a model's regularizer, architecture, loss, columns and classes, and corrections of examples.

    Example: amend models changes churn
    """
    connection.show_page(Client.changes, CHANGE_COLUMNS, limit, after, model)


@command(app)
def hold(connection: Connection, model: Name) -> None:
    """Stop what is done by itself: no adaptation, retrain or promotion until resume.

    Example: amend models hold churn
    """
    held = connection.client.hold(model).held
    connection.say(connection.answer, f"{model} is held: {held.why if held else '-'}.")


@command(app)
def resume(connection: Connection, model: Name, wait: Wait = False) -> None:
    """End a hold; what is due by now begins at once.

    Example: amend models resume churn --wait
    """
    resumed = connection.client.resume(model)
    if wait and resumed.job:
        finish(connection, connection.client.job(resumed.job), wait)
    else:
        due = f"job {resumed.job} does what waited" if resumed.job else "nothing is due"
        connection.say(connection.answer, f"{model} is no longer held; {due}.")


@command(app)
def adapt(connection: Connection, model: Name, wait: Wait = False) -> None:
    """Adapt a model to all changes so far. The first time, this trains it.

    Example: amend models adapt churn --wait
    """
    finish(connection, connection.client.adapt(model), wait)


@command(app)
def retrain(connection: Connection, model: Name, wait: Wait = False) -> None:
    """Retrain a model from scratch, and compare the adapted one with it.

    Example: amend models retrain churn --wait
    """
    finish(connection, connection.client.retrain(model), wait)


def follow_up(connection: Connection, done: Changed | Removed | Replaced, wait: bool) -> None:
    """Show the answer to a change of the ledger; if asked, wait for the job that adapts the model to it."""
    if wait and done.job:
        finish(connection, connection.client.job(done.job), wait)
    else:
        connection.show(connection.answer)
