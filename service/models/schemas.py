"""Bodies and answers about models."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any, cast

from pydantic import BaseModel, ConfigDict, Field, StrictInt, model_validator

from core.kprior.model.spec import SpecPart
from core.models.fields import NAME, Strict, is_none
from core.models.policy import Policy
from core.models.schema_changes import ChangedTableSchema, ChangedTargetSchema
from core.models.spec import ArchitectureSchema, InputSchema, LossSchema, RegularizerSchema, SpecSchema, TargetSchema
from core.models.training import TrainingSchema
from core.tables.ledger import Change, ChangeKind

ModelName = Annotated[str, Field(pattern=NAME, description="1-63 of a-z 0-9 - _", examples=["churn"])]


class NewModel(SpecSchema):
    """A model to be created. Only name, input and target are needed."""

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

    name: ModelName
    training: TrainingSchema = TrainingSchema()
    policy: Policy = Policy()


class Counts(BaseModel):
    """Examples by where they are."""

    train: int
    holdout: int
    removed: int = Field(description="Not in force any more: removed, too old, erased, or replaced by a correction.")


class HeldAnswer(BaseModel):
    """Since when nothing is adapted, retrained or promoted by itself, why, and who asked for it."""

    since: datetime
    why: str = Field(examples=["version 3 was promoted by hand"])
    by: str = Field(description="Id of the key.")


class ModelMlflowAnswer(BaseModel):
    """Where MLflow shows the model."""

    url: str = Field(
        description="Of its page in the registry.",
        examples=["http://127.0.0.1:5000/#/models/churn?workflowType=machine_learning"],
    )


class ModelAnswer(BaseModel):
    """A model as it stands."""

    name: str
    input: InputSchema
    target: TargetSchema
    architecture: ArchitectureSchema
    regularizer: RegularizerSchema
    loss: LossSchema
    class_weight: dict[str, float] | None = Field(
        None, description="What examples of each class count more in training.", exclude_if=is_none
    )
    training: TrainingSchema
    policy: Policy
    counts: Counts
    head: int = Field(description="The last position of the ledger.")
    champion: int | None = Field(description="The version that answers predictions.")
    withdrawn: bool = Field(
        description="Whether it has no champion because its last training example has gone; new ones train it anew."
    )
    pending: int = Field(description="Changes that the champion does not stand for yet.")
    held: HeldAnswer | None = Field(description="Null: the policy is carried out.")
    mlflow: ModelMlflowAnswer | None = Field(description="Null until MLflow was told of the champion.")
    created_at: datetime


class ResumedAnswer(ModelAnswer):
    """A model that is not held any more."""

    job: str | None = Field(description="Does what waited. Null if nothing is due.")


class PolicyPatch(Strict):
    """The fields of the policy that shall change."""

    model_config = ConfigDict(json_schema_extra={"examples": [{"policy": {"retrain": {"every": "7d"}}}]})

    policy: dict[str, object]


class ModelChange(Strict):
    """New parts of the spec: regularizer, architecture, loss, columns of a table, target; or the position of a change
    that shall be undone.
    """

    model_config = ConfigDict(
        json_schema_extra={"examples": [{"regularizer": {"kind": "l2", "delta": 10.0, "penalize_bias": False}}]}
    )

    regularizer: RegularizerSchema | None = None
    architecture: ArchitectureSchema | None = None
    loss: LossSchema | None = None
    input: ChangedTableSchema | None = Field(
        None, description="All columns that there are from now on; what became of those before is found by name."
    )
    target: ChangedTargetSchema | None = Field(None, description="All classes that there are from now on.")
    revert: StrictInt | None = Field(
        None,
        ge=1,
        lt=2**63,
        description="What was changed at this position becomes what it was before: a new change.",
    )

    @model_validator(mode="after")
    def not_empty(self) -> ModelChange:
        if bool(self.parts()) == (self.revert is not None):
            message = (
                "give a regularizer, an architecture, a loss, an input, a target; or the position of a change to revert"
            )
            raise ValueError(message)
        return self

    def parts(self) -> list[tuple[ChangeKind, SpecPart]]:
        """What shall be another, in the order of the ledger."""
        given = [
            (ChangeKind.INPUT, self.input),
            (ChangeKind.TARGET, self.target),
            (ChangeKind.LOSS, self.loss),
            (ChangeKind.REGULARIZER, self.regularizer),
            (ChangeKind.ARCHITECTURE, self.architecture),
        ]
        return [(kind, cast(SpecPart, p.model_dump(mode="json", exclude_none=True))) for kind, p in given if p]


class ChangeAnswer(BaseModel):
    """Where the change stands in the ledger, and the job that carries it out."""

    position: int
    job: str | None = Field(
        description="Null while there is no version to adapt, and while the model is held: `resume` has it done."
    )
    added: list[str] | None = Field(None, exclude_if=is_none, description="Columns that come with another `input`.")
    dropped: list[str] | None = Field(
        None, exclude_if=is_none, description="Columns that go with it: one that is renamed says so, by `was`."
    )


class ChangedAnswer(BaseModel):
    """A change of the model, or a correction of examples."""

    position: int = Field(description="The last one, where a correction took several.")
    kind: ChangeKind = Field(description="A part of the spec; `replaced`: examples were corrected.")
    value: dict[str, object] | None = Field(description="Null where examples were corrected.")
    examples: int | None = Field(description="How many were corrected.")
    created_at: datetime


def of_change(change: Change) -> ChangedAnswer:
    values: dict[str, Any] = {"value": change.value, "kind": change.kind, "created_at": change.created_at}
    examples = change.last - change.first + 1 if change.kind is ChangeKind.REPLACED else None
    return ChangedAnswer(position=change.last, examples=examples, **values)
