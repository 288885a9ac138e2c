"""Answers about two versions side by side."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel, ConfigDict, Field

from core.kprior.model.spec import Spec
from core.tables.versions import Version, VersionKind, VersionState
from core.versions.coefficients import Coefficient
from core.versions.comparison import PairedEvaluation
from core.versions.privacy_rounding import SIDES
from core.versions.side_by_side import spec_differences
from service.versions.schemas import SpecAnswer, of_spec


class SideAnswer(BaseModel):
    """One of two versions that are compared."""

    version: int
    kind: VersionKind
    method: str
    position: int
    state: VersionState
    spec: SpecAnswer


class DifferenceAnswer(BaseModel):
    """A part of the spec that is not the same in both."""

    field: str = Field(examples=["regularizer.delta"])
    a: Any
    b: Any


class FigureAnswer(BaseModel):
    """A figure of both versions, on the same rows."""

    a: float
    b: float
    difference_se: float | None = Field(None, description="Standard error of their difference.")


class CoefficientAnswer(BaseModel):
    """What a feature adds to the output. Null where the architecture has no such feature."""

    model_config = ConfigDict(populate_by_name=True)

    feature: str = Field(examples=["age", "plan = paid", "x[3]", "(intercept)"])
    class_: int | str | None = Field(None, alias="class", description="To the output of which class.")
    a: float | None
    b: float | None


class SideBySideAnswer(BaseModel):
    """Two versions side by side, on the sample of the holdout that versions are measured on."""

    a: SideAnswer
    b: SideAnswer
    differences: list[DifferenceAnswer] = Field(description="Between the specs.")
    rows: int = Field(description="Of the holdout, as it is now; 0: there is none, and nothing to measure on.")
    figures: dict[str, FigureAnswer] = Field(
        description="loss, accuracy, auc, f1, calibration, rmse, r2; no loss where theirs are of different kinds."
    )
    disagreement: float | None = Field(
        description="Share of predictions that differ. Of numbers and counts: how far, relative to the targets' spread."
    )
    disagreement_se: float | None = Field(description="Its standard error.")
    largest_change: float | None = Field(description="Of any prediction: of a probability, a number or a count.")
    weight_distance: float | None = Field(description="|w - w'| of linear models of the same architecture.")
    coefficients: list[CoefficientAnswer] | None = Field(
        description="Of linear models of tables and vectors: those that differ most, in the units of `a` (columns of "
        "numbers are measured in about their deviation). Null for others, and for keys that may not read weights."
    )
    coefficients_total: int | None = Field(description="How many there are.")


def of_side(version: Version, spec: Spec) -> SideAnswer:
    own = SideAnswer.model_fields.keys() - {"version", "spec"}
    return SideAnswer(version=version.number, spec=of_spec(spec), **{n: getattr(version, n) for n in own})


def of_pair(
    sides: list[SideAnswer],
    pair: PairedEvaluation,
    distance: float | None,
    weights: tuple[int, list[Coefficient]] | None,
) -> SideBySideAnswer:
    (a, b), ours, theirs = sides, pair.one.metrics, pair.other.metrics
    shown = [name for name in (*SIDES, "r2") if name in ours and name in theirs and (name != "loss" or pair.alike)]
    total, found = weights or (None, None)
    return SideBySideAnswer(
        a=a,
        b=b,
        differences=[
            DifferenceAnswer(field=field, a=left, b=right)
            for field, left, right in spec_differences(a.spec.model_dump(), b.spec.model_dump())
        ],
        rows=pair.one.count,
        figures={n: FigureAnswer(a=ours[n], b=theirs[n], difference_se=pair.errors.get(n)) for n in shown},
        disagreement=pair.disagreement,
        disagreement_se=pair.errors.get("disagreement"),
        largest_change=pair.largest,
        weight_distance=distance,
        coefficients=found and [CoefficientAnswer(feature=c.feature, class_=c.target, a=c.a, b=c.b) for c in found],
        coefficients_total=total,
    )
