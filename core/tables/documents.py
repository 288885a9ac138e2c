"""The JSON documents that the database stores and the service returns. Each is declared once: the columns, the
responses and, through the OpenAPI document, the client all use these classes. Docstrings of fields are the descriptions
that users read in /docs.

Certificates and audits are declared by the engine (`core.kprior.certificate`).
"""

import math
from dataclasses import asdict
from typing import Annotated, Any, Literal, NotRequired

import sqlalchemy as sa
from pydantic import ConfigDict, Field, TypeAdapter, with_config
from sqlalchemy.dialects.postgresql import JSONB
from sqlalchemy.engine import Dialect
from sqlalchemy.types import TypeDecorator
from typing_extensions import TypedDict  # pydantic cannot read typing.TypedDict before Python 3.12

from core.kprior.certificate.certificate import Certificate


class CertificateColumn(TypeDecorator[Certificate]):
    """A certificate as JSON; infinite numbers and NaN are stored as null."""

    impl = sa.JSON(none_as_null=True).with_variant(JSONB(none_as_null=True), "postgresql")
    cache_ok = True

    def process_bind_param(self, value: Certificate | None, dialect: Dialect) -> dict[str, Any] | None:
        return None if value is None else certificate_json(value)

    def process_result_value(self, value: dict[str, Any] | None, dialect: Dialect) -> Certificate | None:
        return None if value is None else read_certificate(value)


def certificate_json(certificate: Certificate) -> dict[str, Any]:
    """
    >>> document = certificate_json(Certificate("bound", passes=1, bound=math.inf))
    >>> document["kind"], document["passes"], document["bound"]
    ('bound', 1, None)
    """

    def finite(values: list[tuple[str, Any]]) -> dict[str, Any]:
        return {name: None if isinstance(v, float) and not math.isfinite(v) else v for name, v in values}

    return asdict(certificate, dict_factory=finite)


read_certificate = TypeAdapter(Certificate).validate_python
"""From JSON, which may lack fields that were added since."""


class JobError(TypedDict):
    """Why a job, or an erasure in one model, failed."""

    code: str
    """Stable identifier of the error, for programs."""
    detail: str
    """Error message."""


class MemoryDocument(TypedDict):
    """Past examples that a version keeps for later adaptations."""

    size: int
    """Number of examples in the memory."""
    fraction: float
    """Size of the memory relative to the number of training examples."""


class CostDocument(TypedDict):
    """Cost of computing a version."""

    backward_passes: float
    """Number of single-example gradients."""
    data_passes: float
    """Number of passes over the past training examples."""
    seconds: float
    """Time in seconds."""


class GateComparison(TypedDict):
    """A version compared with an older version on the same holdout rows."""

    # descriptions, not docstrings, because `GateDocument` extends it
    metric: str
    version: Annotated[int | None, Field(description="Number of the older version.")]
    champion: Annotated[float | None, Field(description="Metric of the older version.")]
    candidate: Annotated[float | None, Field(description="Metric of this version.")]
    difference: Annotated[float | None, Field(description="`candidate` minus `champion`.")]
    difference_se: Annotated[float | None, Field(description="Standard error of the paired difference.")]
    relative: Annotated[
        float | None,
        Field(description="How much worse this version is, relative to the older version; negative if it is better."),
    ]
    rows: Annotated[int, Field(description="Number of holdout rows that were compared.")]
    passed: Annotated[bool | None, Field(description="null: the comparison was not possible; `reason` says why.")]
    reason: NotRequired[
        Annotated[
            str,
            Field(
                description="`first_version`, `too_few_rows`, `schema_changed` or `version_purged`; with `passed`"
                " false, `holdout_lost`: removals or corrections took away the rows to compare on."
            ),
        ]
    ]
    carried: NotRequired[
        Annotated[
            float,
            Field(
                description="How much worse the older version is than a confirmed version that an erasure purged,"
                " rounded; counts towards `worse_by`."
            ),
        ]
    ]


class SegmentComparison(GateComparison):
    """A version compared with the champion on holdout rows that have the same value of a column."""

    column: str
    value: Annotated[str, Field(description="The value; `(missing)` and `(other)` for missing and unseen values.")]


@with_config(ConfigDict(use_attribute_docstrings=True))
class GateDocument(GateComparison):
    """Result of the promotion gate: the comparison with the champion; `passed` counts all comparisons."""

    action: Literal["reject", "warn"]
    """What a failure leads to. Versions without new examples are never rejected."""
    confirmed: NotRequired[GateComparison]
    """Comparison with the last version that a person accepted or a retrain confirmed; it may be the champion."""
    segments: NotRequired[list[SegmentComparison]]
    """Comparisons with the champion for the values of the columns in `policy.segments`, the worst first."""
    batch: NotRequired[GateComparison]
    """Comparison with the champion on the holdout rows of the new examples. It does not decide."""
    corrections: NotRequired[GateComparison]
    """Loss of the champion on the holdout without (`champion`) and with (`candidate`) the corrections since the
    confirmed version; `rows` is the number of corrected rows. It is never a reason to reject a version."""


@with_config(ConfigDict(use_attribute_docstrings=True))
class DriftBin(TypedDict):
    """Number of rows whose value is in a bin."""

    label: str
    """Range of numbers or dates, value of a category, class, `missing` or `unseen`."""
    reference: int
    window: int


class DriftMeasure(TypedDict):
    """How much a distribution differs from that of the reference."""

    # descriptions, not docstrings, because others extend it
    psi: Annotated[float, Field(description="Population stability index; 0 if there is nothing to compare.")]
    limit: Annotated[float, Field(description="PSI above which it counts as drifted: 0.2, or more with few rows.")]
    p_value: Annotated[float, Field(description="p-value of a chi-squared test. It does not decide.")]
    drifted: Annotated[bool, Field(description="Whether `psi` exceeds `limit`, with at least 200 rows on each side.")]
    too_few_rows: Annotated[
        bool, Field(description="Whether one side has fewer than 200 rows, so that drift cannot be detected.")
    ]
    missing: Annotated[float, Field(description="Share of the window's rows in which the value is missing.")]
    unseen: Annotated[float, Field(description="Share of the window's rows whose category is unknown.")]
    bins: Annotated[list[DriftBin], Field(description="Histogram of the reference and of the window.")]


@with_config(ConfigDict(use_attribute_docstrings=True))
class ColumnDrift(DriftMeasure):
    """Drift of a column."""

    name: str
    """Name of the column; `x[0]`, `x[1]`, ... for vectors."""
    type: Literal["number", "boolean", "date", "category"]


@with_config(ConfigDict(use_attribute_docstrings=True))
class PredictionDrift(DriftMeasure):
    """Drift of the champion's predictions."""

    type: Literal["probability", "score", "number", "class"]
    reference_rows: int
    """Number of rows of the reference that were predicted."""
    window_rows: int
    """Number of predicted rows of the window: its holdout rows, if there are at least 200."""


@with_config(ConfigDict(use_attribute_docstrings=True))
class DriftRows(TypedDict):
    """Rows that a distribution was computed from. All of them are in force at `position`."""

    rows: int
    """Number of rows."""
    first_position: int | None
    last_position: int
    """For the reference: the position of the last full training."""
    sample: Literal["holdout", "training", "recent"]
    """`holdout`, `training`: random rows of that split; `recent`: the most recent rows of both."""
    pending: int
    """Number of rows among them that have no label yet."""


@with_config(ConfigDict(use_attribute_docstrings=True))
class SegmentDrift(TypedDict):
    """Drift among the rows that have the same value of a column."""

    column: str
    value: str
    """The value; `(missing)` and `(other)` for missing and unseen values."""
    reference_rows: int
    window_rows: int
    drifted: bool
    """Whether a column or the predictions have drifted within the segment."""
    drifted_columns: list[str]
    predictions_drifted: bool
    worst: str | None
    """Column with the largest PSI."""
    psi: float
    """Largest PSI of a column."""


@with_config(ConfigDict(use_attribute_docstrings=True))
class DriftDocument(TypedDict):
    """Recent examples compared with the examples of the last full training."""

    position: int
    """Last position of the ledger that it covers."""
    version: int
    """Version that made the predictions."""
    reference: DriftRows
    window: DriftRows
    drifted: bool
    """Whether a column or the predictions have drifted."""
    columns: list[ColumnDrift]
    """The columns by descending PSI, at most 100."""
    omitted: int
    """Number of columns with a smaller PSI that are not listed."""
    predictions: PredictionDrift | None
    """Null if the champion was made for other columns or classes than the model has now."""
    segments: list[SegmentDrift]
    """Drift among the rows with each value of the columns in `policy.segments`, the worst first. Values with fewer than
    200 rows on either side are left out."""


class DriftedNames(TypedDict):
    """What has drifted and not yet recovered."""

    columns: list[str]
    predictions: bool


class ReliabilityBin(TypedDict):
    """Predictions of similar confidence, and how often they were right."""

    confidence: float
    accuracy: float
    count: int


class CurveDocument(TypedDict):
    """Points of the ROC and precision-recall curves of a binary model, by descending threshold."""

    threshold: list[float]
    """Smallest probability, or score, of rows that count as class 1."""
    false_positive_rate: list[float]
    recall: list[float]
    """Also called the true positive rate."""
    precision: list[float]


class TrialDocument(TypedDict):
    """A method that was tried to make a network's version; see `worker.versions.method_choice.Trial`."""

    method: str
    predicted: int
    visits: int
    count: int
    budget: int
    objection: str


class EvaluationDocument(TypedDict, total=False):
    """Data of a version's charts, beyond its metrics."""

    confusion: list[list[int]] | None
    reliability: list[ReliabilityBin]
    coverage: list[ReliabilityBin]
    """For numbers: how often the target is within an interval of a given probability."""
    curve: CurveDocument
    threshold: float
    """Decision threshold of the confusion matrix and of the metrics that depend on the predicted class."""
    frozen: dict[str, float]
    """Metrics of the first version on the same holdout."""
    trials: list[TrialDocument]


class SidesDocument(TypedDict):
    """A metric of the adapted version and of the full retrain, on the same rows."""

    adapted: float
    retrained: float
    difference_se: NotRequired[float]
    """Standard error of the difference."""


class CostsDocument(TypedDict):
    """Cost of the adapted version and of the full retrain."""

    adapted: CostDocument
    retrained: CostDocument


class ComparisonDocument(TypedDict, total=False):
    """An adapted version and a full retrain side by side."""

    # descriptions, not docstrings: pydantic finds docstrings of a class's own fields only, and the response extends it
    loss: SidesDocument
    accuracy: SidesDocument
    auc: SidesDocument
    average_precision: SidesDocument
    f1: SidesDocument
    calibration: SidesDocument
    rmse: SidesDocument
    rows: Annotated[int, Field(description="Number of examples that the metrics were computed on.")]
    heaviest: Annotated[float | None, Field(description="Largest share of one example in their total weight.")]
    disagreement: Annotated[
        float | None,
        Field(
            description="Fraction of predictions that differ; for numbers and counts, their distance relative to the "
            "spread of the targets."
        ),
    ]
    disagreement_se: Annotated[float | None, Field(description="Standard error of the disagreement.")]
    weight_distance: Annotated[float | None, Field(description="|w_adapted - w_retrained|; null for networks.")]
    cost: CostsDocument
    speedup: Annotated[float, Field(description="Seconds of the full retrain divided by those of the adaptation.")]
    retrain_is_worse: Annotated[
        str | None,
        Field(
            description="Metric in which the retrained version is worse than the adapted one by more than two standard "
            "errors of the difference, with both values; null if there is none. A worse version does not take over."
        ),
    ]
    took_over: Annotated[bool, Field(description="Whether later adaptations start from the retrained version.")]
    outcome: Annotated[str, Field(description="What happened to the retrained version, and why.")]


class TensorDocument(TypedDict):
    """An input or output of an encoder."""

    name: str
    type: Annotated[str, Field(description="Type as onnxruntime names it.", examples=["tensor(float)"])]
    shape: Annotated[
        list[int | str | None], Field(description="Sizes; a name or null for a size that may vary, such as the rows.")
    ]


class MlflowPlace(TypedDict, total=False):
    """Location of a version in MLflow. Empty: it was looked for, and MLflow does not have it."""

    run_id: Annotated[str, Field(description="Id of the version's run.")]
    version: Annotated[str | None, Field(description="Version number in MLflow's model registry.")]
