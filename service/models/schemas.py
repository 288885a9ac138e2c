"""Request and response bodies about models."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any, cast

from pydantic import ConfigDict, Field, StrictInt, model_validator

from core.kprior.model.spec import Column, Input, SpecPart
from core.models.field_types import NAME, Strict, Text, is_none, is_zero
from core.models.policy import Policy
from core.models.schema_changes import (
    MAX_COLUMNS,
    ChangedTableSchema,
    ChangedTargetSchema,
    NewColumns,
    change_columns,
)
from core.models.spec import ArchitectureSchema, LossSchema, RegularizerSchema, SpecSchema
from core.models.training_options import TrainingSchema
from core.tables.ledger import Change, ChangeKind
from service.http.response_model import ResponseModel

ModelName = Annotated[str, Field(pattern=NAME, description="1-63 of a-z 0-9 - _", examples=["churn"])]


class Named(Strict):
    name: ModelName


class NewModel(SpecSchema, Named):
    """A new model. Only `name`, `input` and `target` are required."""

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [
                {
                    "name": "churn",
                    "input": {"kind": "vector", "dim": 3},
                    "target": {"kind": "binary"},
                    "architecture": {"kind": "linear", "degree": 1},
                    "regularizer": {"kind": "l2", "delta": 5.0, "penalize_bias": False},
                    "policy": {"memory": {"fraction": 0.02}, "holdout": 0.1},
                }
            ]
        }
    )

    training: TrainingSchema = TrainingSchema()
    policy: Policy = Policy()


class CountsResponse(ResponseModel):
    """Numbers of examples."""

    train: int
    holdout: int
    removed: int
    """Examples no longer in force: removed, expired, erased, or replaced by a correction."""
    quarantined: int
    """Examples out of force because the promotion gate rejected the version that learnt them."""
    unlabelled: int
    """Examples without a label, which are not trained on yet."""
    encoding_failed: int = Field(0, exclude_if=is_zero)
    """Active examples that the model's encoder could not encode. They are not trained on:
    `GET .../examples?state=encoding_failed` lists them. Missing if zero."""


class HeldResponse(ResponseModel):
    """A hold: until `resume`, nothing is adapted, retrained or promoted automatically."""

    since: datetime
    reason: str = Field(examples=["version 3 was promoted by hand"])
    by: str
    """Id of the API key that held the model."""


class ModelMlflowResponse(ResponseModel):
    """Location of the model in MLflow."""

    url: str = Field(examples=["http://127.0.0.1:5000/#/models/churn?workflowType=machine_learning"])
    """Address of its page in MLflow's model registry."""


class ModelResponse(SpecSchema, Named):
    """A model: its spec, policy and present state."""

    model_config = ConfigDict(use_attribute_docstrings=True)

    loss: LossSchema
    """Loss that training minimises."""
    training: TrainingSchema
    policy: Policy
    counts: CountsResponse
    head: int
    """Last position of the ledger."""
    champion: int | None
    """Version that makes the predictions; null until the model is trained."""
    withdrawn: bool
    """Whether the model has no champion because its last training example was removed; new examples train it again."""
    pending: int
    """Number of changes not yet reflected in the champion."""
    held: HeldResponse | None
    """Null if the model is not held: the policy applies."""
    mlflow: ModelMlflowResponse | None
    """Null until the champion is published to MLflow."""
    created_at: datetime


class ResumedResponse(ModelResponse):
    """A model that is no longer held."""

    job: str | None
    """Id of the job that processes the pending changes; null if there are none."""


class PolicyPatch(Strict):
    """The fields of the policy to change; the others keep their values."""

    model_config = ConfigDict(json_schema_extra={"examples": [{"policy": {"retrain": {"every": "7d"}}}]})

    policy: dict[str, object]


class ModelChange(Strict):
    """New values for parts of the spec: regularizer, architecture, loss, input, target. Or the position of an earlier
    change to revert.
    """

    model_config = ConfigDict(
        json_schema_extra={"examples": [{"regularizer": {"kind": "l2", "delta": 10.0, "penalize_bias": False}}]}
    )

    regularizer: RegularizerSchema | None = None
    architecture: ArchitectureSchema | None = None
    loss: LossSchema | None = None
    input: ChangedTableSchema | None = Field(
        None,
        description="The complete new list of columns. `was` is the former name of a renamed column. Columns that are"
        " left out must be named in `drop_columns`.",
    )
    add_columns: NewColumns | None = Field(
        None,
        description="Columns to add to a table. A column that was dropped returns with its values; `default` is the"
        " value in examples without one.",
    )
    drop_columns: list[Text] | None = Field(
        None,
        min_length=1,
        max_length=MAX_COLUMNS,
        fail_fast=True,
        description="Names of columns to drop. Their values stay stored, so that `add_columns` can restore them.",
    )
    target: ChangedTargetSchema | None = Field(None, description="The complete new list of classes.")
    revert: StrictInt | None = Field(
        None,
        ge=1,
        lt=2**63,
        description="Position of a change to undo: its part of the spec gets the value it had before.",
    )

    @model_validator(mode="after")
    def not_empty(self) -> ModelChange:
        if self.has_parts == (self.revert is not None):
            message = (
                "give a regularizer, architecture, loss, input or target, or columns to add or drop; or the position of"
                " a change to revert"
            )
            raise ValueError(message)
        if self.input and self.add_columns:
            raise ValueError("give either the complete `input` or `add_columns`")
        return self

    @property
    def has_parts(self) -> bool:
        parts = (self.input, self.add_columns, self.drop_columns, self.target, self.loss)
        return any((*parts, self.regularizer, self.architecture))

    def parts(self, current: Input) -> list[tuple[ChangeKind, SpecPart]]:
        """The new parts, in the order of the ledger; `current` is the model's input."""
        given = [
            (ChangeKind.TARGET, self.target),
            (ChangeKind.LOSS, self.loss),
            (ChangeKind.REGULARIZER, self.regularizer),
            (ChangeKind.ARCHITECTURE, self.architecture),
        ]
        parts = [(kind, plain(part)) for kind, part in given if part]
        if self.input or self.add_columns or self.drop_columns:
            added = [cast(Column, plain(column)) for column in self.add_columns or []]
            changed = plain(self.input) if self.input else None
            parts.insert(0, (ChangeKind.INPUT, change_columns(current, changed, added, self.drop_columns or [])))
        return parts


def plain(part: Strict) -> SpecPart:
    return cast(SpecPart, part.model_dump(mode="json", exclude_none=True))


class ChangedResponse(ResponseModel):
    """Confirmation of a change of the model."""

    position: int
    """Position of the change in the ledger."""
    job: str | None
    """Id of the job that adapts the model; null while there is no version to adapt, and while the model is held."""
    added: list[str] | None = Field(None, exclude_if=is_none)
    """Columns that the change adds."""
    dropped: list[str] | None = Field(None, exclude_if=is_none)
    """Columns that the change drops; a renamed column states its former name in `was`."""
    restored: list[str] | None = Field(None, exclude_if=is_none)
    """Added columns that had been dropped, and have their values in earlier examples again."""


class ChangeResponse(ResponseModel):
    """A change of the spec, or a correction of examples."""

    position: int
    """Position in the ledger; the last one if a correction took several."""
    kind: ChangeKind
    """Part of the spec that changed, or `replaced` if examples were corrected."""
    value: dict[str, object] | None
    """New value; null if examples were corrected."""
    examples: int | None
    """Number of corrected examples; null if the spec changed."""
    created_at: datetime


def of_change(change: Change) -> ChangeResponse:
    values: dict[str, Any] = {"value": change.value, "kind": change.kind, "created_at": change.created_at}
    examples = change.last - change.first + 1 if change.kind is ChangeKind.REPLACED else None
    return ChangeResponse(position=change.last, examples=examples, **values)
