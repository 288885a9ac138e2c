"""The steps of an imported pipeline that turn raw inputs into features: part of an input, in place of its encoding.

`core/kprior/model/pipeline_features.py` computes them. They are data, not code: callers cannot add
functions of their own.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field, model_validator

from core.models.field_types import Positive, Strict, Text

MAX_NUMBERS = 1_000_000
"""Maximum number of constants in all steps together."""
MAX_DEPTH = 10
"""Maximum number of `parts` inside each other."""
Numbers = Annotated[list[float], Field(fail_fast=True)]
Places = Annotated[list[Annotated[int, Field(ge=-1)]], Field(fail_fast=True)]
Place = Annotated[int, Field(ge=-1)]


class FillStepSchema(Strict):
    """Replace missing values, and append the flags of some of them."""

    kind: Literal["fill"]
    values: list[float | None] = Field(description="Replacement for each input; null keeps missing values.")
    flags: list[Annotated[int, Field(ge=0)]] = Field([], description="Inputs whose missing-value flags are appended.")


class ScaleStepSchema(Strict):
    """(x - mean) / scale for each input."""

    kind: Literal["scale"]
    mean: Numbers
    scale: Annotated[list[Positive], Field(fail_fast=True)]


class ClipStepSchema(Strict):
    """Limit all inputs to a range."""

    kind: Literal["clip"]
    low: float
    high: float


class OneHotSchema(Strict):
    """The outputs of one category: -1 is none of them."""

    places: Places = Field(description="Output that is 1 for each of the column's values.")
    unseen: Place = -1
    missing: Place = -1
    width: int = Field(ge=0, le=10_000, description="Number of outputs.")


class OneHotStepSchema(Strict):
    """Turn categories into indicators."""

    kind: Literal["one_hot"]
    inputs: list[OneHotSchema]


class LookupSchema(Strict):
    """The number that stands for each value of one category."""

    values: Numbers
    unseen: float
    missing: float | None = Field(None, description="Null keeps missing values missing.")


class LookupStepSchema(Strict):
    """Turn categories into numbers."""

    kind: Literal["lookup"]
    inputs: list[LookupSchema]


class FunctionStepSchema(Strict):
    """Apply a function to all inputs."""

    kind: Literal["function"]
    name: Literal["log1p", "log", "log2", "log10", "sqrt", "square", "exp", "expm1", "abs"]


class ProductsStepSchema(Strict):
    """Products of inputs; the product of none is 1."""

    kind: Literal["products"]
    of: list[Annotated[list[Annotated[int, Field(ge=0)]], Field(max_length=10)]]


class PiecewiseSchema(Strict):
    """Polynomials on consecutive intervals of one input: splines and bins."""

    breaks: Numbers = Field(description="Where an interval ends and the next begins, in ascending order.")
    origins: Numbers = Field(description="The value that each interval's polynomials are centred at.")
    coefficients: list[list[Numbers]] = Field(
        description="For each output and interval, the coefficients, the constant first."
    )
    low: float | None = Field(None, description="Smaller inputs count as this one.")
    high: float | None = Field(None, description="Larger inputs count as this one.")


class PiecewiseStepSchema(Strict):
    """Evaluate piecewise polynomials of each input; its outputs for a missing input are 0."""

    kind: Literal["piecewise"]
    inputs: list[PiecewiseSchema]


class ProjectStepSchema(Strict):
    """A linear map: matrix x + offset."""

    kind: Literal["project"]
    matrix: list[Numbers] = Field(min_length=1)
    offset: Numbers


class NormalizeStepSchema(Strict):
    """Divide each row by its norm."""

    kind: Literal["normalize"]
    norm: Literal["l1", "l2", "max"] = "l2"


class PartSchema(Strict):
    """Steps for some of the inputs."""

    inputs: list[Annotated[int, Field(ge=0)]]
    steps: list[StepSchema] = Field([], max_length=100)


class PartsStepSchema(Strict):
    """Apply steps to some of the inputs, and concatenate the results."""

    kind: Literal["parts"]
    parts: list[PartSchema] = Field(min_length=1, max_length=10_000)


StepSchema = Annotated[
    FillStepSchema
    | ScaleStepSchema
    | ClipStepSchema
    | OneHotStepSchema
    | LookupStepSchema
    | FunctionStepSchema
    | ProductsStepSchema
    | PiecewiseStepSchema
    | ProjectStepSchema
    | NormalizeStepSchema
    | PartsStepSchema,
    Field(discriminator="kind"),
]


class TransformSchema(Strict):
    """Steps that turn raw inputs into features, in place of Amend's own encoding."""

    steps: list[StepSchema] = Field(min_length=1, max_length=100)
    features: list[Text] = Field(min_length=1, description="Names of the features.")
    trained_on: Literal["examples", "other"] = Field(
        "examples", description="Whether the constants of the steps were fitted on the examples or on other data."
    )

    @model_validator(mode="after")
    def bounded(self) -> TransformSchema:
        if depth_of(self.steps) > MAX_DEPTH:
            raise ValueError(f"at most {MAX_DEPTH} `parts` can be inside each other")
        if count_numbers([step.model_dump() for step in self.steps]) > MAX_NUMBERS:
            raise ValueError(f"the steps can have at most {MAX_NUMBERS} numbers")
        return self


def depth_of(steps: list[StepSchema]) -> int:
    """How many `parts` are inside each other."""
    parts = [part for step in steps if isinstance(step, PartsStepSchema) for part in step.parts]
    return 1 + max(depth_of(part.steps) for part in parts) if parts else 0


def count_numbers(value: Any) -> int:
    if isinstance(value, dict):
        return sum(map(count_numbers, value.values()))
    return sum(map(count_numbers, value)) if isinstance(value, list) else isinstance(value, int | float)


PartSchema.model_rebuild()
TransformSchema.model_rebuild()
