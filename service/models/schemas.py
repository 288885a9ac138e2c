"""Bodies and answers about models."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, model_validator

from core.models.catalog import NAME
from core.models.policy import Policy
from core.models.spec import Architecture, Input, Regularizer, Spec, Strict, Target, Training

ModelName = Annotated[str, Field(pattern=NAME, description="1-63 of a-z 0-9 - _", examples=["churn"])]


class NewModel(Spec):
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
    training: Training = Training()
    policy: Policy = Policy()


class Counts(BaseModel):
    """Examples by where they are."""

    train: int
    holdout: int
    removed: int


class ModelAnswer(BaseModel):
    """A model as it stands."""

    name: str
    input: Input
    target: Target
    architecture: Architecture
    regularizer: Regularizer
    training: Training
    policy: Policy
    counts: Counts
    head: int = Field(description="The last position of the ledger.")
    champion: int | None = Field(description="The version that answers predictions.")
    pending: int = Field(description="Changes that the champion does not stand for yet.")
    created_at: datetime


class PolicyPatch(Strict):
    """The fields of the policy that shall change."""

    model_config = ConfigDict(json_schema_extra={"examples": [{"policy": {"retrain": {"every": "7d"}}}]})

    policy: dict[str, Any]


class ModelChange(Strict):
    """A new regularizer, a new architecture, or both."""

    model_config = ConfigDict(
        json_schema_extra={"examples": [{"regularizer": {"kind": "l2", "delta": 10.0, "penalize_bias": False}}]}
    )

    regularizer: Regularizer | None = None
    architecture: Architecture | None = None

    @model_validator(mode="after")
    def not_empty(self) -> ModelChange:
        if self.regularizer is None and self.architecture is None:
            raise ValueError("give a regularizer, an architecture, or both")
        return self


class ChangeAnswer(BaseModel):
    """Where the change stands in the ledger, and the job that carries it out."""

    position: int
    job: str | None = Field(description="Null while there is no version to adapt.")
