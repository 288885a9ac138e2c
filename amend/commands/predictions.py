"""``amend predict``: predictions of a model."""

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer

from amend.commands import output
from amend.commands.arguments import is_file, parse_json, read_table
from amend.commands.connection import Connection, fail, option
from amend.commands.models import Name
from amend.requests import path
from amend.responses import Prediction, Predictions

Numbered = tuple[int, Prediction]
# Which columns have values depends on the target.
COLUMNS: output.Columns[Numbered] = {
    "mean": lambda row: row[1].mean,
    "score": lambda row: row[1].score,
    "class": lambda row: row[1].class_,
    "labels": lambda row: row[1].labels,
    "probabilities": lambda row: row[1].probabilities,
    "std": lambda row: row[1].std,
    "interval": lambda row: row[1].interval,
    "contributions": lambda row: row[1].contributions,
}


def predict(
    connection: Connection,
    model: Name,
    inputs: Annotated[
        str,
        typer.Argument(
            help="JSON (a text in double quotes), or a .json, .csv, .parquet or .arrow file; - for standard input."
        ),
    ],
    version: Annotated[
        int | None, typer.Option("--version", min=1, help="Number of the version. Default: the champion.")
    ] = None,
    uncertainty: Annotated[bool, option("--uncertainty", "Include the standard deviation and an interval.")] = False,
    explain: Annotated[bool, option("--explain", "Include the contribution of each column.")] = False,
    record: Annotated[
        bool, option("--record", "Store the inputs and predictions as examples without labels. Requires --id.")
    ] = False,
    ids: Annotated[list[str] | None, option("--id", "With --record: id of each input, in order.")] = None,
    subjects: Annotated[list[str] | None, option("--subject", "With --record: person of each input, in order.")] = None,
) -> None:
    """Predict for a list of inputs, for a single vector, row or text, or for the rows of a file.

    Example: amend predict churn customers.csv
    """
    if is_table(inputs):
        if record or ids or subjects:
            fail("--record, --id and --subject apply to inputs as JSON, not to a table.")
        print_table_of(connection, model, inputs, version, uncertainty, explain)
        return
    body = make_body(parse_json(inputs, "The input"))
    if version is not None:
        body["version"] = version
    if uncertainty:
        body["uncertainty"] = True
    if explain:
        body["explain"] = True
    if record:
        body["record"] = True
    body |= {name: given for name, given in (("ids", ids), ("subjects", subjects)) if given}
    client = connection.client
    found = client.read(Predictions, client.request("POST", path("models", model, "predictions"), json=body))
    if connection.as_json:
        output.print_json(connection.response)
        return
    rows = list(enumerate(found.outputs, start=1))
    shown = {name: value_of for name, value_of in COLUMNS.items() if any(value_of(row) is not None for row in rows)}
    output.print_table(rows, {"input": lambda row: row[0], **shown})
    output.note(f"Predicted by version {found.version} of {model}.")


def is_table(inputs: str) -> bool:
    return Path(inputs).suffix.lower() in (".csv", ".parquet", ".arrow", ".arrows", ".feather") and is_file(inputs)


def print_table_of(
    connection: Connection, model: str, name: str, version: int | None, uncertainty: bool, explain: bool
) -> None:
    """Print the predictions for the rows of a file."""
    client, given = connection.client, read_table(name)
    options: dict[str, Any] = {"version": version, "uncertainty": uncertainty}
    try:
        ask = partial(client.predict, explain=True) if explain else client.predict_table
        found: Any = ask(model, given, **options)
    except ValueError as error:
        fail(f"{name}: {error}")
    rows = found.to_arrow().to_pylist()
    if explain:
        rows = [{**row, "contributions": dict(row["contributions"])} for row in rows]
    if connection.as_json:
        output.print_json({"version": found.version, "outputs": rows})
        return
    numbered = list(enumerate(rows, start=1))
    names = found.to_arrow().column_names

    def cell_of(column: str) -> Callable[[tuple[int, dict[str, Any]]], object]:
        return lambda row: row[1][column]

    output.print_table(numbered, {"input": lambda row: row[0], **{column: cell_of(column) for column in names}})
    output.note(f"Predicted by version {found.version} of {model}.")


def make_body(value: Any) -> dict[str, object]:
    """The request body for a complete body, a list of inputs, or a single input.

    >>> make_body({"age": 39})
    {'inputs': [{'age': 39}]}
    """
    match value:
        case {"inputs": list()}:
            return dict(value)
        case dict() | str() | [int() | float(), *_]:
            return {"inputs": [value]}
        case _:
            return {"inputs": value}
