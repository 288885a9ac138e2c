"""``amend predict``: predictions of a model."""

from typing import Annotated, Any

import typer

from amend.commands import output
from amend.commands.arguments import parse_json
from amend.commands.connection import Connection, option
from amend.commands.models import Name
from amend.requests import path
from amend.responses import Prediction, Predictions

Numbered = tuple[int, Prediction]
# Which columns have values depends on the target.
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
    inputs: Annotated[str, typer.Argument(help="Inputs as JSON, or a file with JSON; - for standard input.")],
    version: Annotated[int | None, typer.Option("--version", min=1, help="Default: the champion.")] = None,
    uncertainty: Annotated[bool, option("--uncertainty", "Include the standard deviation and an interval.")] = False,
) -> None:
    """Predict for a list of inputs, or for a single vector or row.

    Example: amend predict churn '[[0.2, 1.5], [0.1, 0.9]]'
    """
    body = make_body(parse_json(inputs, "The input"))
    if version is not None:
        body["version"] = version
    if uncertainty:
        body["uncertainty"] = True
    client = connection.client
    found = client.read(Predictions, client.request("POST", path("models", model, "predictions"), json=body))
    if connection.as_json:
        output.print_json(connection.response)
        return
    rows = list(enumerate(found.outputs, start=1))
    shown = {name: value_of for name, value_of in COLUMNS.items() if any(value_of(row) is not None for row in rows)}
    output.print_table(rows, {"input": lambda row: row[0], **shown})
    output.note(f"Predicted by version {found.version} of {model}.")


def make_body(value: Any) -> dict[str, object]:
    """The request body for a complete body, a list of inputs, or a single input.

    >>> make_body({"age": 39})
    {'inputs': [{'age': 39}]}
    """
    match value:
        case {"inputs": list()}:
            return dict(value)
        case dict() | [int() | float(), *_]:
            return {"inputs": [value]}
        case _:
            return {"inputs": value}
