"""Inputs as callers send them -> one array of numbers, checked against the model's schema; and back.

One class for each kind of input. Each reads decoded JSON and Arrow columns, for examples and predictions alike.
Places of errors begin with the name of the list in the request and the index in it.
"""

from __future__ import annotations

from functools import lru_cache

import msgspec

from core.kprior.model.spec import Input, PredictorSpec, dtype_of
from service.parsing.inputs.base import Inputs
from service.parsing.inputs.tables import TableInputs
from service.parsing.inputs.vectors import ImageInputs, VectorInputs

__all__ = ["Inputs", "inputs_of"]


@lru_cache(maxsize=256)
def build(described: str) -> Inputs:
    given: Input = msgspec.json.decode(described)
    if given["kind"] == "vector":
        return VectorInputs(given["dim"])
    if given["kind"] == "image":
        return ImageInputs(given["shape"], dtype_of(given))
    return TableInputs(given["columns"])


def inputs_of(spec: PredictorSpec) -> Inputs:
    """The reader of a model's inputs, kept for the next request."""
    return build(msgspec.json.encode(spec["input"]).decode())
