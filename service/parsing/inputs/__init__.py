"""Converts inputs between the values that callers send and an array of numbers, validated against the model's schema.

There is one class per kind of input. Each reads decoded JSON and Arrow columns, for examples and predictions. The
location of an error starts with the name of the list in the request and the index in it.
"""

from functools import lru_cache

import msgspec

from core.kprior.model.spec import Input, PredictorSpec, dtype_of
from service.parsing.inputs.base import Inputs
from service.parsing.inputs.tables import TableInputs
from service.parsing.inputs.texts import TextInputs
from service.parsing.inputs.vectors import ImageInputs, VectorInputs

__all__ = ["Inputs", "inputs_of"]


@lru_cache(maxsize=256)
def build(described: str) -> Inputs:
    given: Input = msgspec.json.decode(described)
    if given["kind"] == "vector":
        return VectorInputs(given["dim"])
    if given["kind"] == "image":
        return ImageInputs(given["shape"], dtype_of(given))
    if given["kind"] == "text":
        return TextInputs()
    return TableInputs(given["columns"])


def inputs_of(spec: PredictorSpec) -> Inputs:
    """The parser of a model's inputs, cached for the next request."""
    return build(msgspec.json.encode(spec["input"]).decode())
