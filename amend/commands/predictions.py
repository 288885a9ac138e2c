"""``amend predict``: ask a model for predictions."""

from typing import Annotated, Any

import typer

from amend.commands import output
from amend.commands.arguments import parse_json
from amend.commands.connection import Connection
from amend.commands.models import Name
from amend.responses import Prediction, Predictions
from amend.sansio import path

Numbered = tuple[int, Prediction]
# Which of them there are depends on the target.
COLUMNS: output.Columns[Numbered] = {
    "mean": lambda row: row[1].mean,
    "score": lambda row: row[1].score,
    "class": lambda row: row[1].class_,
    "probabilities": lambda row: row[1].probabilities,
    "std": lambda row: row[1].std,
    "interval": lambda row: row[1].interval,
}


def predict(
    connection: Connection,
    model: Name,
    inputs: Annotated[str, typer.Argument(help="Inputs in JSON, or a file of them; - for stdin.")],
    version: Annotated[int | None, typer.Option("--version", min=1, help="Default: the champion.")] = None,
    uncertainty: Annotated[bool, typer.Option("--uncertainty", help="How sure it is, too: std and interval.")] = False,
) -> None:
    """Predict: a list of inputs, or one vector or row alone.

    Example: amend predict churn '[[0.2, 1.5], [0.1, 0.9]]'
    """
    body = make_body(parse_json(inputs, "the input"))
    if version is not None:
        body["version"] = version
    if uncertainty:
        body["uncertainty"] = True
    client = connection.client
    found = client.read(Predictions, client.request("POST", path("models", model, "predictions"), json=body))
    if connection.as_json:
        output.print_json(connection.answer)
        return
    rows = list(enumerate(found.outputs, start=1))
    there = {name: value_of for name, value_of in COLUMNS.items() if any(value_of(row) is not None for row in rows)}
    output.print_table(rows, {"input": lambda row: row[0], **there})
    output.note(f"By version {found.version} of {model}.")


def make_body(given: Any) -> dict[str, object]:
    """The body to send for what was given: it itself, a list of inputs, or one input alone.

    >>> make_body({"age": 39})
    {'inputs': [{'age': 39}]}
    """
    match given:
        case {"inputs": list()}:
            return dict(given)
        case dict() | [int() | float(), *_]:
            return {"inputs": [given]}
        case _:
            return {"inputs": given}
