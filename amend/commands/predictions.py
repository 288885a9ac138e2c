"""``amend predict``: ask a model for predictions."""

from typing import Annotated, Any

import typer

from amend.commands import output
from amend.commands.arguments import parse_json
from amend.commands.connection import Connection
from amend.commands.models import Name
from amend.sansio import path


def predict(
    connection: Connection,
    model: Name,
    inputs: Annotated[str, typer.Argument(help="Inputs in JSON, or a file of them; - for stdin.")],
    version: Annotated[int | None, typer.Option("--version", min=1, help="Default: the champion.")] = None,
) -> None:
    """Predict: a list of inputs, or one vector or row alone.

    Example: amend predict churn '[[0.2, 1.5], [0.1, 0.9]]'
    """
    body = request(parse_json(inputs, "the input"))
    if version is not None:
        body["version"] = version
    answer = connection.client.post(path("models", model, "predictions"), body)
    if connection.as_json:
        output.print_json(answer)
        return
    rows = [{"input": number} | value for number, value in enumerate(answer["outputs"], start=1)]
    names = dict.fromkeys(name for row in rows for name in row)
    output.print_table(rows, {name: name for name in names})
    output.note(f"By version {answer['version']} of {model}.")


def request(given: Any) -> dict[str, Any]:
    """The body to send for what was given: it itself, a list of inputs, or one input alone.

    >>> request({"age": 39})
    {'inputs': [{'age': 39}]}
    """
    match given:
        case {"inputs": list()}:
            return dict(given)
        case dict() | [int() | float(), *_]:
            return {"inputs": [given]}
        case _:
            return {"inputs": given}
