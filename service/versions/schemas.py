"""Responses about versions, promotions and comparisons."""

from datetime import datetime
from typing import Any, cast

from pydantic import ConfigDict, with_config

from core.kprior.certificate.certificate import Certificate
from core.kprior.model.spec import Spec, loss_of
from core.promotion.gate_rule import unjudged
from core.tables.documents import ComparisonDocument, CostDocument, GateDocument, MemoryDocument, MlflowPlace
from core.tables.versions import Comparison, Version, VersionKind, VersionState
from core.tracking.lineage import main_metric
from core.versions.coefficients import NamedCoefficient
from service.http.response_model import ResponseModel
from service.models.schemas import HeldResponse


class MlflowResponse(MlflowPlace):
    """Location of the version in MLflow."""

    url: str | None
    """Address of its page in MLflow; null if MLflow's address is not configured."""


class VersionResponse(ResponseModel):
    """A model state that reflects the ledger up to one position."""

    version: int
    """Number of the version, counted from 1 in each model."""
    kind: VersionKind
    """`trained` on all examples, or `adapted` from another version."""
    parent: int | None
    """Version that it was adapted from."""
    position: int
    """Last position of the ledger that it reflects."""
    removals_position: int
    """Position up to which removals are reflected: `position`, or a later one if the version replaces a purged one."""
    state: VersionState
    method: str
    """`kprior`, `warm` (gradient descent on all examples, starting from the previous version), `retrain`, or `imported`
    (weights that were trained elsewhere)."""
    memory: MemoryDocument
    metrics: dict[str, float | None]
    """Metrics on the holdout. `rows` is the number of holdout examples; a name that ends in `_se` is the standard error
    of another metric."""
    headline: str | None
    """Name of the metric that pages and lists show first (`policy.headline`); null without metrics."""
    certificate: Certificate | None
    """How far the version can be from a full retrain; null if the policy does not ask for a certificate."""
    gate: GateDocument | None
    """Result of the promotion gate. `passed` is null, with a `reason`, if the version could not be judged;
    `version_purged` if an erasure deleted the result."""
    quarantined: int
    """Number of examples in quarantine because the gate rejected this version."""
    cost: CostDocument
    # not `SpecSchema`: validating a thousand columns again for each version of a page would take longer than all else
    spec: dict[str, object]
    """Spec that the version was made with: the parts `input`, `target`, `architecture`, `regularizer` and `loss`, and
    `class_weight` if the model has it, as in the model."""
    sha256: str | None
    """SHA-256 of the file of weights; null once the version is purged for an erasure."""
    mlflow: MlflowResponse | None
    """Null until the version is published to MLflow."""
    created_at: datetime


class PromotedResponse(VersionResponse):
    """The new champion, or a purged version that a job rebuilds."""

    held: HeldResponse | None
    """Set if the model is held: promoting an older version holds it until `resume`."""
    job: str | None
    """Id of the job that rebuilds a purged version and promotes the result; null if the version is the champion."""


class DecisionResponse(VersionResponse):
    """A rejected version after a person decided about it."""

    examples: int
    """Number of examples that were put back into force, or removed."""
    job: str | None
    """Id of the job that adapts the model to them; null if there is none."""


class PromotionResponse(ResponseModel):
    """One promotion of a version to champion."""

    version: int
    previous: int | None
    """Champion before the promotion."""
    by: str
    """Id of the API key that requested the promotion, or `policy`."""
    created_at: datetime


@with_config(ConfigDict(use_attribute_docstrings=True))
class ComparisonResponse(ComparisonDocument):
    """Comparison of an adapted version with a full retrain at the same position."""

    position: int
    adapted: int
    """Number of the adapted version."""
    retrained: int
    """Number of the retrained version."""
    within_tolerance: bool
    """Whether the adapted version is within the policy's tolerance of the retrained one."""
    created_at: datetime


class CoefficientsResponse(ResponseModel):
    """All coefficients of a linear model, class by class."""

    items: list[NamedCoefficient]
    next: None = None
    """Always null: there is only one page."""


def of_spec(spec: Spec) -> dict[str, object]:
    """A spec with its loss, even if that is the default loss of the target."""
    return {**spec, "loss": loss_of(spec)}


def of_version(
    version: Version, spec: Spec, url: str | None, headline: str | None, quarantined: int
) -> VersionResponse:
    made = {"version", "headline", "gate", "quarantined", "spec", "sha256", "mlflow"}
    own = VersionResponse.model_fields.keys() - made
    values: dict[str, Any] = {name: getattr(version, name) for name in own}
    return VersionResponse(
        version=version.number,
        headline=main_metric(version.metrics, headline),
        gate=version.gate or missing_gate(version),
        quarantined=quarantined,
        spec=of_spec(spec),
        sha256=version.sha256 or None,
        mlflow=None if version.mlflow is None else {**version.mlflow, "url": url},
        **values,
    )


def missing_gate(version: Version) -> GateDocument:
    """The gate of a version without a stored result: an erasure deleted it, or the version predates the gate."""
    reason = "version_purged" if version.state is VersionState.PURGED else "not_judged"
    return cast(GateDocument, {**unjudged("loss", 0, reason), "action": "warn"})


def of_comparison(row: Comparison) -> ComparisonResponse:
    return {
        **row.result,
        "position": row.position,
        "adapted": row.adapted,
        "retrained": row.retrained,
        "within_tolerance": row.within_tolerance,
        "created_at": row.created_at,
    }
