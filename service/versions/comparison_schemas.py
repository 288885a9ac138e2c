"""Responses that compare two versions."""

from typing import Any

from pydantic import Field

from core.kprior.model.spec import Spec
from core.quality.side_by_side import spec_differences
from core.quality.version_comparison import PairedEvaluation
from core.tables.versions import Version, VersionKind, VersionState
from core.versions.coefficients import Coefficient
from core.versions.privacy_rounding import SIDES
from service.http.response_model import ResponseModel
from service.versions.schemas import of_spec


class SideResponse(ResponseModel):
    """One of the two versions."""

    version: int
    kind: VersionKind
    method: str
    position: int
    state: VersionState
    spec: dict[str, object]


class DifferenceResponse(ResponseModel):
    """A part of the spec that differs between the versions."""

    field: str = Field(examples=["regularizer.delta"])
    a: Any
    b: Any


class FigureResponse(ResponseModel):
    """A metric of both versions, on the same rows."""

    a: float
    b: float
    difference_se: float | None = None
    """Standard error of the difference."""


class SideBySideResponse(ResponseModel):
    """Comparison of two versions on the same sample of the holdout."""

    a: SideResponse
    b: SideResponse
    differences: list[DifferenceResponse]
    """Differences between the specs."""
    rows: int
    """Number of holdout examples that the metrics were computed on; 0 if there is no holdout."""
    metrics: dict[str, FigureResponse]
    """`loss`, `accuracy`, `auc`, `average_precision`, `f1`, `calibration`, `rmse` and `r2`, where they apply to both
    versions. `loss` is missing if the versions have different loss functions."""
    disagreement: float | None
    """Fraction of predictions that differ; for numbers and counts, their distance relative to the targets' spread."""
    disagreement_se: float | None
    """Standard error of the disagreement."""
    largest_change: float | None
    """Largest difference between two predictions: of a probability, a number or a count."""
    weight_distance: float | None
    """|w_a - w_b|, for linear models of the same architecture."""
    coefficients: list[Coefficient] | None
    """Coefficients that differ most, for linear models of tables and vectors, in the units of version `a` (numbers in
    tables are standardised). Null for other models, and for keys without the scope `weights`."""
    coefficients_total: int | None
    """Number of all coefficients, including those that are not listed."""


def of_side(version: Version, spec: Spec) -> SideResponse:
    own = SideResponse.model_fields.keys() - {"version", "spec"}
    return SideResponse(version=version.number, spec=of_spec(spec), **{n: getattr(version, n) for n in own})


def of_pair(
    sides: list[SideResponse],
    pair: PairedEvaluation,
    distance: float | None,
    weights: tuple[int, list[Coefficient]] | None,
) -> SideBySideResponse:
    (a, b), ours, theirs = sides, pair.one.metrics, pair.other.metrics
    shown = [name for name in (*SIDES, "r2") if name in ours and name in theirs and (name != "loss" or pair.alike)]
    total, found = weights or (None, None)
    return SideBySideResponse(
        a=a,
        b=b,
        differences=[
            DifferenceResponse(field=field, a=left, b=right) for field, left, right in spec_differences(a.spec, b.spec)
        ],
        rows=pair.one.count,
        metrics={n: FigureResponse(a=ours[n], b=theirs[n], difference_se=pair.errors.get(n)) for n in shown},
        disagreement=pair.disagreement,
        disagreement_se=pair.errors.get("disagreement"),
        largest_change=pair.largest,
        weight_distance=distance,
        coefficients=found,
        coefficients_total=total,
    )
