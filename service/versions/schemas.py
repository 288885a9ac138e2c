"""Answers about versions, promotions and comparisons."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from pydantic import BaseModel, ConfigDict, Field

from core.kprior.model.spec import Spec, loss_of
from core.models.fields import is_none
from core.tables.versions import Comparison, Promotion, Version, VersionKind, VersionState
from core.versions.coefficients import NamedCoefficient
from service.models.schemas import HeldAnswer


class MemoryAnswer(BaseModel):
    """How much of the past a version remembers."""

    size: int
    fraction: float


class AuditAnswer(BaseModel):
    """What was measured of a network: there is no bound for it."""

    model_config = ConfigDict(extra="allow")

    visits: int = Field(description="Gradients of single examples that it took.")
    unseen: int = Field(description="Examples that the figures of unseen ones are of; `holdout` tells whether its own.")
    unseen_loss: float | None
    unseen_loss_before: float | None = Field(description="Of the version before: had nothing been done.")
    unseen_error: float | None = Field(description="Standard error of their difference.")
    kept_loss: float | None = Field(description="Of some examples that stay.")
    kept_loss_before: float | None
    removed: int = Field(0, description="Examples that the figures of removed ones are of.")
    removed_loss: float | None = None
    expected_loss: float | None = Field(None, description="What examples like them should lose at least, never seen.")
    membership_auc: float | None = Field(
        None, description="Chance that a removed example has a smaller loss than an unseen one."
    )
    expected_auc: float | None = Field(None, description="The same of a small network that never saw them.")
    auc_error: float | None = Field(None, description="Standard error of their difference.")
    still_named: float | None = Field(
        None, description="Share of removed examples that are still predicted as they were labelled."
    )
    expected_named: float | None = Field(None, description="The same, had they never been seen.")


class RemovalAnswer(BaseModel):
    """What certified removal promises, and how much of its noise the distance to the retrain takes up."""

    epsilon: float
    delta: float
    allowed: float = Field(description="Largest norm of the gradient for which the promise holds.")
    spent: float | None = Field(description="The norm of the gradient.")


class CertificateAnswer(BaseModel):
    """How far the version can be from the retrain that nobody ran; of networks, what was measured."""

    model_config = ConfigDict(extra="allow")

    kind: str = Field(description='"bound" or "measured".')
    bound: float | None = Field(None, description="Covers |w - w_retrain|; null: no bound.")
    relative: float | None = Field(None, description="bound / |w|.")
    prediction_bound: float | None = Field(None, description="Covers the change of any holdout prediction.")
    gradient_norm: float | None = None
    passes: int = 0
    audit: AuditAnswer | None = Field(None, description="Networks.")
    removal: RemovalAnswer | None = Field(
        None, description="Models that were trained for certified removal.", exclude_if=is_none
    )


class CostAnswer(BaseModel):
    """What making the version cost."""

    backward_passes: float
    data_passes: float
    seconds: float


class MlflowAnswer(BaseModel):
    """Where MLflow shows it."""

    run_id: str | None = None
    version: str | None = Field(None, description="In MLflow's registry.")
    url: str | None = Field(None, description="Of its page; null where MLflow's address is not known.")


class SpecAnswer(BaseModel):
    """What a version reads and predicts, and what it is."""

    # as stored: checking a thousand columns again, for each version of a page, would take longer than all else
    input: dict[str, object]
    target: dict[str, object]
    architecture: dict[str, object]
    regularizer: dict[str, object]
    loss: dict[str, object]
    class_weight: dict[str, float] | None = Field(None, exclude_if=is_none)


class VersionAnswer(BaseModel):
    """A model state that stands for the ledger up to one position."""

    version: int
    kind: VersionKind
    parent: int | None
    position: int
    state: VersionState
    method: str = Field(
        description='"kprior", "warm" (a descent on all examples from the version before), "retrain" or '
        '"imported" (weights that somebody else found).'
    )
    memory: MemoryAnswer
    metrics: dict[str, float | None] = Field(
        description="On `rows` of the holdout; what ends in `_se` is the standard error of a figure."
    )
    certificate: CertificateAnswer | None
    cost: CostAnswer
    spec: SpecAnswer = Field(description="As it was made.")
    sha256: str | None = Field(description="Of its file; null once it is purged.")
    mlflow: MlflowAnswer | None
    created_at: datetime


class PromotedAnswer(VersionAnswer):
    """The new champion."""

    held: HeldAnswer | None = Field(description="Promoting an older version holds the model, until `resume`.")


class PromotionAnswer(BaseModel):
    """A version became champion."""

    version: int
    previous: int | None
    by: str = Field(description='Id of the key that asked for it, or "policy".')
    created_at: datetime


class ComparisonAnswer(BaseModel):
    """An adapted version and a full retrain at the same position."""

    model_config = ConfigDict(extra="allow")

    position: int
    adapted: int
    retrained: int
    accuracy: dict[str, float] | None = Field(
        None, description="`adapted`, `retrained`, and the standard error of their difference: the rows are the same."
    )
    loss: dict[str, float] | None = None
    rows: int | None = Field(None, description="On how many examples both were looked at.")
    disagreement: float | None = None
    disagreement_se: float | None = Field(None, description="Its standard error.")
    weight_distance: float | None = None
    cost: dict[str, CostAnswer] | None = None
    speedup: float | None = None
    within_tolerance: bool
    worse: str | None = Field(
        None,
        description="In which figure the retrained version is worse than the adapted one, by more than two standard "
        "errors of the difference on the holdout; then it does not take over.",
    )
    took_over: bool = Field(False, description="Whether adaptations go on from the retrained version.")
    outcome: str = Field("", description="What became of the retrained version, and why.")
    created_at: datetime


class NamedCoefficientAnswer(BaseModel):
    """What a feature adds to the output of a linear model."""

    model_config = ConfigDict(populate_by_name=True)

    feature: str = Field(examples=["age", "plan = paid", "age * age", "x[3]", "(intercept)"])
    class_: int | str | None = Field(None, alias="class", description="To the output of which class.")
    coefficient: float = Field(description="For each unit of the input, as it is sent.")
    standardised: float = Field(
        description="For each unit that the model measures in: of a table's numbers, about their deviation."
    )


class CoefficientsAnswer(BaseModel):
    """All coefficients of a linear model, class by class."""

    items: list[NamedCoefficientAnswer]
    next: None = Field(None, description="There are no further pages.")


def of_spec(spec: Spec) -> SpecAnswer:
    """A spec with its loss, also where that is the target's own."""
    return SpecAnswer.model_validate({**spec, "loss": loss_of(spec)})


def of_version(version: Version, spec: Spec, url: str | None) -> VersionAnswer:
    own = VersionAnswer.model_fields.keys() - {"version", "spec", "sha256", "mlflow"}
    values: dict[str, Any] = {name: getattr(version, name) for name in own}
    return VersionAnswer(
        version=version.number,
        spec=of_spec(spec),
        sha256=version.sha256 or None,
        mlflow=None if version.mlflow is None else MlflowAnswer(**version.mlflow, url=url),
        **values,
    )


def of_coefficient(found: NamedCoefficient) -> NamedCoefficientAnswer:
    return NamedCoefficientAnswer(
        feature=found.feature,
        class_=found.target,
        coefficient=found.coefficient,
        standardised=found.standardised,
    )


def of_promotion(promotion: Promotion) -> PromotionAnswer:
    return PromotionAnswer(**{n: getattr(promotion, n) for n in PromotionAnswer.model_fields})


def of_comparison(row: Comparison) -> ComparisonAnswer:
    return ComparisonAnswer(
        position=row.position,
        adapted=row.adapted,
        retrained=row.retrained,
        within_tolerance=row.within_tolerance,
        created_at=row.created_at,
        **row.figures,
    )
