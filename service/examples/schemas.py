"""Bodies and answers about examples. Bodies are parsed by `formats`; what stands here documents them."""

from __future__ import annotations

from typing import Any, Literal

import numpy as np
from pydantic import BaseModel, Field

from core.ledger.layouts import Layout
from core.ledger.queries import StoredExample
from core.tables.ledger import Example
from service.examples.formats import FORMATS, JSON
from service.http.bodies import Schema, describe_body
from service.parsing.inputs import inputs_of
from service.parsing.targets import Targets
from service.parsing.weights import MAX_WEIGHT

EXAMPLE: Schema = {
    "type": "object",
    "required": ["id", "x", "y"],
    "additionalProperties": False,
    "properties": {
        "id": {"type": "string", "minLength": 1, "maxLength": 200},
        "subject": {
            "type": ["string", "null"],
            "minLength": 1,
            "maxLength": 200,
            "description": "The person it is about; stored as a keyed hash only.",
        },
        "x": {
            "anyOf": [{"type": "array"}, {"type": "object"}],
            "description": "A list of numbers, channels of rows of pixels, or a value for each column.",
        },
        "y": {"type": ["integer", "number", "string", "boolean"]},
        "split": {"enum": ["train", "holdout", None]},
        "weight": {
            "type": ["number", "null"],
            "exclusiveMinimum": 0,
            "maximum": MAX_WEIGHT,
            "description": "How many times it counts, in training and in figures; null: once.",
        },
    },
}
SAMPLE: Schema = {
    "examples": [
        {"id": "a1", "subject": "user-7", "x": [0.1, 0.2, 0.3], "y": 1},
        {"id": "a2", "x": [0.4, 0.5, 0.6], "y": 0, "split": "train"},
    ]
}
LINES = '{"id": "a3", "x": [0.1, 0.2, 0.3], "y": 1}\n{"id": "a4", "x": [0.4, 0.5, 0.6], "y": 0}\n'
CSV = "id,subject,y,age,income,visits\na5,user-8,1,0.1,0.2,0.3\na6,,0,0.4,0.5,0.6\n"

BODY = describe_body(
    "examples",
    {"items": EXAMPLE},
    SAMPLE,
    formats={
        "application/x-ndjson": {"schema": {"type": "string"}, "example": LINES},
        "text/csv": {"schema": {"type": "string"}, "example": CSV},
        **{
            binary: {"schema": {"type": "string", "format": "binary"}}
            for binary in FORMATS
            if binary.startswith("application/vnd.apache.")
        },
    },
)


CONTENT: Schema = {
    **EXAMPLE,
    "required": ["x", "y"],
    "properties": {name: field for name, field in EXAMPLE["properties"].items() if name != "id"},
}
ONE: Schema = {
    "requestBody": {
        "required": True,
        "content": {JSON: {"schema": CONTENT, "example": {"x": [0.1, 0.2, 0.3], "y": 0}}},
    }
}


class AddedAnswer(BaseModel):
    """What came of a batch. A batch is stored whole or not at all."""

    accepted: int
    duplicates: int = Field(description="Examples that were there already, with the same content.")
    first_position: int | None
    last_position: int | None


class ReplacedAnswer(BaseModel):
    """What came of a correction. All examples of a request are corrected, or none."""

    replaced: int
    unchanged: int = Field(description="Examples that were as they were given already; nothing happens to them.")
    position: int = Field(description="The last position that it took, one for each replaced; the head if none.")
    job: str | None = Field(
        description="Adapts the model to it. Null if nothing was replaced, while there is no version to adapt, and"
        " while the model is held: `resume` has it done."
    )


class ExampleAnswer(BaseModel):
    """A stored example. Its subject is not shown: only a keyed hash of it is stored."""

    id: str
    x: Any
    y: int | float | str
    split: Literal["train", "holdout"]
    weight: float = Field(description="How many times it counts.")
    position: int


def of_example(row: Example | StoredExample, layout: Layout) -> ExampleAnswer:
    inputs = inputs_of(layout.spec)
    y, x = layout.content(row.position, row.y, row.x)
    return ExampleAnswer(
        id=row.id,
        x=inputs.to_json(np.frombuffer(x, inputs.dtype)),
        y=Targets(layout.spec["target"]).to_json(y),
        split="holdout" if row.holdout else "train",
        weight=1.0 if row.weight is None else row.weight,
        position=row.position,
    )
