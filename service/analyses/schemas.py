"""Requests and responses of analyses."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any, Literal

from pydantic import Field, TypeAdapter, model_validator

from core.models.field_types import PLAIN, Strict
from core.quality.scored_rows import Metric
from core.tables.analyses import Analysis, AnalysisKind
from service.http.response_model import ResponseModel
from service.models.schemas import ModelChange

Text = Annotated[str, Field(min_length=1, max_length=200, pattern=PLAIN)]
Folds = Annotated[int, Field(ge=2, le=100, description="Number of folds.")]
By = Annotated[Literal["example", "subject"], Field(description="Draw single examples, or all of a subject together.")]
Top = Annotated[int, Field(ge=1, le=1_000, description="Maximum number of rows in the result.")]
Items = Annotated[list[Any], Field(min_length=1)]
MAX_NAMES = 100_000


class RemovedRows(Strict):
    """Examples to remove: exactly one of the three."""

    ids: list[Text] | None = Field(None, min_length=1, max_length=MAX_NAMES, fail_fast=True)
    subjects: list[Text] | None = Field(None, min_length=1, max_length=MAX_NAMES, fail_fast=True)
    source: Text | None = None

    @model_validator(mode="after")
    def one_of_three(self) -> RemovedRows:
        if [self.ids, self.subjects, self.source].count(None) != 2:
            raise ValueError("Give exactly one of `ids`, `subjects` and `source`")
        return self


class PreviewRequest(Strict):
    """What a change would do. Examples to remove, examples to add, a change of the model, or several of them."""

    kind: Literal["preview"]
    remove: RemovedRows | None = None
    add: Items | None = Field(None, description="Examples to add, as in `POST .../examples`.")
    change: ModelChange | None = Field(None, description="A body of `POST .../changes`.")
    erasure: bool = Field(
        False,
        description="Preview an erasure of the `subjects` instead of a removal: the version may not depend on them.",
    )

    @model_validator(mode="after")
    def not_empty(self) -> PreviewRequest:
        if not (self.remove or self.add or self.change):
            raise ValueError("Give at least one of `remove`, `add` and `change`")
        if self.change and self.change.revert is not None:
            raise ValueError("A preview of `revert` is not available; give the parts of the spec instead")
        if self.erasure and (not self.remove or self.remove.subjects is None or self.add or self.change):
            raise ValueError("A preview of an erasure removes `subjects`, and nothing else")
        return self


class LeaveOneOutRequest(Strict):
    """What the model would predict for each training example without it, and which labels look wrong."""

    kind: Literal["leave_one_out"]
    by: Literal["example", "subject", "source"] = Field(
        "example", description="Leave out single examples, or all examples of each subject or source (exactly)."
    )
    top: Top = 100


class CrossValidationRequest(Strict):
    """Metrics of models that were trained without each fold."""

    kind: Literal["cross_validation"]
    folds: Folds = 10
    by: By = "example"


class TuningRequest(Strict):
    """Cross-validated metrics of several values of a parameter."""

    kind: Literal["tuning"]
    parameter: Text = Field(
        "regularizer.delta",
        description="`regularizer.delta`, `regularizer.columns.NAME`, `architecture.degree`,"
        " `architecture.lengthscale` (kernel models) or `class_weight.CLASS`.",
    )
    values: list[float] | None = Field(
        None,
        min_length=2,
        max_length=50,
        description="Values to compare. Default: 13 values of `regularizer.delta` around the present one.",
    )
    folds: Folds = 10
    by: By = "example"
    metric: Metric | None = Field(None, description="Metric that decides. Default: the loss.")

    @model_validator(mode="after")
    def has_values(self) -> TuningRequest:
        if self.values is None and self.parameter != "regularizer.delta":
            raise ValueError("`values` are required for this parameter")
        return self


class Inputs(Strict):
    """Inputs, each in the format of the `x` of an example."""

    inputs: Items


class InfluenceRequest(Strict):
    """How the holdout loss, or predictions, would change without each example, person or source."""

    kind: Literal["influence"]
    on: Literal["holdout"] | Inputs = "holdout"
    by: Literal["example", "subject", "source"] = "source"
    top: Top = 100


class LabellingRequest(Strict):
    """Which inputs to label next. The pool is not stored."""

    kind: Literal["labelling"]
    inputs: Items | None = Field(None, description="The pool. Default: the model's examples without a label.")
    top: Top = 50


AnalysisRequest = Annotated[
    PreviewRequest | LeaveOneOutRequest | CrossValidationRequest | TuningRequest | InfluenceRequest | LabellingRequest,
    Field(discriminator="kind"),
]
adapter: TypeAdapter[Any] = TypeAdapter(AnalysisRequest)


class StartedAnalysisResponse(ResponseModel):
    """An analysis that a job computes."""

    id: str
    job: str
    """Id of the job."""


class AnalysisResponse(ResponseModel):
    """An analysis at one position of the ledger."""

    id: str
    model: str
    kind: AnalysisKind
    request: dict[str, Any]
    """The parameters, without data that the caller sent."""
    position: int | None
    """The ledger position that was analysed; null until the analysis has finished."""
    version: int | None
    """The newest version at that position."""
    result: dict[str, Any] | None
    """Depends on the kind; null until the analysis has finished."""
    cost: dict[str, float] | None
    """`seconds`, and `data_passes` over the training examples."""
    job: str | None
    """Id of the job that computes it; null if no pass was needed."""
    created_at: datetime
    finished_at: datetime | None


def of_analysis(analysis: Analysis, model: str) -> AnalysisResponse:
    hidden = ("add", "inputs")
    request = {name: value for name, value in analysis.request.items() if name not in hidden}
    if "subjects" in (request.get("remove") or {}):
        request["remove"] = {"subjects": len(request["remove"]["subjects"])}  # keyed hashes mean nothing to callers
    return AnalysisResponse(
        id=analysis.id,
        model=model,
        kind=AnalysisKind(analysis.kind),
        request=request,
        position=analysis.position,
        version=analysis.version,
        result=analysis.result,
        cost=analysis.cost,
        job=analysis.job_id,
        created_at=analysis.created_at,
        finished_at=analysis.finished_at,
    )
