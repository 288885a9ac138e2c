"""Request and response bodies about examples. Request bodies are parsed by `formats`; here they are documented."""

from datetime import datetime
from typing import Any, Literal

import numpy as np
from pydantic import Field

from core.ledger.layouts import Layout
from core.ledger.queries import StoredExample
from core.ledger.unlabelled_examples import inputs_of as pending_inputs
from core.models.field_types import is_none, is_zero
from core.tables.ledger import Example, PendingExample
from service.examples.formats import FORMATS, JSON
from service.http.body_schemas import Schema, describe_body
from service.http.response_model import ResponseModel
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
            "description": "Person that the example is about. Only a keyed hash of it is stored.",
        },
        "x": {
            "anyOf": [{"type": "array"}, {"type": "object"}, {"type": "string"}],
            "description": "A list of numbers, channels of rows of pixels, a PNG or JPEG file in Base64, a text, or a "
            "value for each column.",
        },
        "y": {
            "type": ["integer", "number", "string", "boolean", "array", "null"],
            "items": {"type": ["integer", "string", "boolean"]},
            "description": "The label, or a list of labels; null if it is not known yet.",
        },
        "split": {"enum": ["train", "holdout", None]},
        "weight": {
            "type": ["number", "null"],
            "exclusiveMinimum": 0,
            "maximum": MAX_WEIGHT,
            "description": "How many times the example counts, in training and in metrics; 1 if it is null.",
        },
        "time": {"type": ["string", "null"], "format": "date-time", "description": "Event time, RFC 3339."},
        "source": {
            "type": ["string", "null"],
            "minLength": 1,
            "maxLength": 200,
            "description": "The load, file or system it came from. Examples can be listed and removed by source.",
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
    "requestBody": {"required": True, "content": {JSON: {"schema": CONTENT, "example": {"x": [0.1, 0.2, 0.3], "y": 0}}}}
}


class AddedResponse(ResponseModel):
    """Result of adding a batch of examples. A batch is stored completely or not at all."""

    accepted: int = 0
    """Number of examples that were stored, with or without a label."""
    duplicates: int = 0
    """Number of examples that had been stored before, with the same content."""
    first_position: int | None = None
    """First position that the batch took in the ledger; null if it took none, as examples without a label do."""
    last_position: int | None = None
    quarantined: int = Field(0, exclude_if=is_zero)
    """Number of stored examples in quarantine, because they are about people whose data was erased; missing if zero."""


class ReplacedResponse(ResponseModel):
    """Result of a correction. All examples of a request are corrected, or none."""

    replaced: int = 0
    """Number of examples that were replaced."""
    unchanged: int = 0
    """Number of examples that already had the given content."""
    quarantined: int = Field(0, exclude_if=is_zero)
    """Number of new examples in quarantine, because they are about people whose data was erased; missing if zero."""
    position: int = 0
    """Last position that the correction took in the ledger, one for each replaced example; the head if it took none."""
    job: str | None = None
    """Id of the job that adapts the model; null if nothing was replaced, while there is no version to adapt, and while
    the model is held."""


class RecordedPredictionResponse(ResponseModel):
    """A prediction that was made before the label of an example is known."""

    version: int
    """Number of the version that predicted."""
    mean: float | list[float]
    """Predicted mean; for several classes, the probability of each."""


class ExampleResponse(ResponseModel):
    """A stored example. Its subject is not included: only a keyed hash of it is stored."""

    id: str
    x: Any
    """A list of numbers, channels of rows of pixels, or a value for each column."""
    y: int | float | str | list[int | str] | None
    """A list for a target of several labels. Null if the example has no label yet."""
    split: Literal["train", "holdout"]
    weight: float
    """How many times the example counts."""
    position: int | None
    """Position in the ledger; null if the example has no label yet."""
    time: datetime | None = Field(None, exclude_if=is_none)
    """Event time."""
    source: str | None = Field(None, exclude_if=is_none)
    """Load, file or system that the example came from."""
    prediction: RecordedPredictionResponse | None = Field(None, exclude_if=is_none)
    """What was predicted for an example without a label when it arrived."""


def of_example(row: Example | StoredExample, layout: Layout) -> ExampleResponse:
    inputs = inputs_of(layout.spec)
    y, x, unseen = layout.content(row.position, row.y, row.x, row.unseen)
    return ExampleResponse(
        id=row.id,
        x=inputs.to_json(inputs.from_stored(x), unseen),
        y=Targets(layout.spec["target"]).to_json(y),
        split="holdout" if row.holdout else "train",
        weight=1.0 if row.weight is None else row.weight,
        position=row.position,
        time=row.time,
        source=row.source,
    )


def of_pending(row: PendingExample, layout: Layout) -> ExampleResponse:
    x, unseen = pending_inputs([row], layout)
    return ExampleResponse(
        id=row.id,
        x=inputs_of(layout.spec).to_json(x[0], unseen[0] if unseen else None),
        y=None,
        split="holdout" if row.holdout else "train",
        weight=1.0 if row.weight is None else row.weight,
        position=None,
        time=row.time,
        source=row.source,
        prediction=of_prediction(row.version, row.mean),
    )


def of_prediction(version: int | None, mean: bytes | None) -> RecordedPredictionResponse | None:
    """A recorded prediction, if there is one."""
    if version is None or mean is None:
        return None
    numbers = np.frombuffer(mean, "<f8").tolist()
    return RecordedPredictionResponse(version=version, mean=numbers[0] if len(numbers) == 1 else numbers)
