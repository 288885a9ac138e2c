"""Whether an ONNX encoder takes the inputs of a model."""

from __future__ import annotations

from collections.abc import Sequence

from core.errors import Invalid, Location
from core.inference.onnx_inputs import takes_columns
from core.kprior.model.spec import Input, shape_of
from core.tables.documents import TensorDocument


def check_inputs(inputs: Sequence[TensorDocument], given: Input, location: Location) -> None:
    """Raise Invalid if an encoder does not take the inputs of a model."""
    if problem := find_problem(inputs, given):
        raise Invalid.at((*location, "digest"), "encoder_unsuitable", problem)


def find_problem(inputs: Sequence[TensorDocument], given: Input) -> str | None:
    """Why an encoder does not take the inputs of a model; None if it does."""
    names = [one["name"] for one in inputs]
    if given["kind"] == "table" and takes_columns(inputs, given["columns"]):
        known = {column["name"]: column for column in given["columns"]}
        for one in inputs:
            text, numbers = one["type"] == "tensor(string)", known[one["name"]]["type"] != "category"
            if text and numbers:
                return f"its input {one['name']!r} takes text, but the column of that name has numbers"
        return None
    if len(inputs) != 1:
        listed = ", ".join(map(repr, names[:10]))
        return f"it has the inputs {listed}; expected a single one, or for tables one per column with the same names"
    [one] = inputs
    if (one["type"] == "tensor(string)") != (given["kind"] == "text"):
        return f"its input {one['name']!r} is a {one['type']}, which does not fit {given['kind']} input"
    shape = (1,) if given["kind"] == "text" else shape_of(given)
    declared = one["shape"][1:]
    if given["kind"] == "text" and len(declared) > 1:
        return f"its input {one['name']!r} must have the shape [rows] or [rows, 1]"
    if given["kind"] != "text" and len(declared) != len(shape):
        return f"its input {one['name']!r} has the shape {one['shape']}; expected [rows, {', '.join(map(str, shape))}]"
    if any(isinstance(size, int) and size != wanted for size, wanted in zip(declared, shape, strict=False)):
        return f"its input {one['name']!r} has the shape {one['shape']}; expected [rows, {', '.join(map(str, shape))}]"
    return None
