"""The policy of a model: when it is adapted and retrained, how much it remembers, and what is promoted."""

import re
from datetime import timedelta
from typing import Annotated, Literal

from pydantic import AfterValidator, ConfigDict, Discriminator, Field, Tag, ValidationError

from core.errors import Invalid
from core.models.field_types import Strict
from core.models.validation_messages import describe_all, drop_other_forms
from core.tables.models import Model, PolicyDocument

UNITS = {"s": "seconds", "m": "minutes", "h": "hours", "d": "days"}


def duration(text: str) -> timedelta:
    """
    >>> duration("90s")
    datetime.timedelta(seconds=90)
    """
    match = re.fullmatch(r"([1-9][0-9]{0,8})([smhd])", text, re.ASCII)
    if not match:
        raise ValueError("must be a positive integer and a unit, such as 30s, 10m, 24h or 7d")
    length = timedelta(**{UNITS[match[2]]: int(match[1])})
    if length > timedelta(days=3650):
        raise ValueError("must not exceed ten years")
    return length


def check_duration(text: str) -> str:
    duration(text)
    return text


Duration = Annotated[str, AfterValidator(check_duration), Field(max_length=12, examples=["10m"])]


class MemoryPolicySchema(Strict):
    """The memorable past: how many examples a version remembers, and which."""

    fraction: float = Field(0.02, gt=0, le=1, description="Fraction of the training examples that is remembered.")
    cap: int = Field(5_000, ge=1, le=1_000_000, description="Maximum number of remembered examples.")
    select: Literal["auto", "curvature", "leverage", "coverage", "random"] = Field(
        "auto", description="How the examples are selected; auto: leverage for linear models, otherwise random."
    )
    balance: bool = Field(False, description="Remember equally many examples of each class.")


class AdaptPolicy(Strict):
    """When pending changes trigger an adaptation. Null disables a condition."""

    after_changes: int | None = Field(100, ge=1, le=2**31, description="Number of pending changes.")
    every: Duration | None = Field("10m", description="Age of the oldest pending change.")


class RetrainPolicy(Strict):
    """When a full retrain checks the adapted model; without an interval or drift, only on request."""

    every: Duration | None = Field(
        "24h", description="Interval of retrains; skipped if nothing has changed since the last one."
    )
    on_drift: bool = Field(False, description="Also retrain when drift is detected.")


class TunePolicy(Strict):
    """When the penalty is tuned by a cross-validation. The result is an analysis with a suggestion."""

    every: Duration | None = Field(
        None, description="Interval of tunings; skipped if nothing has changed since the last one. Null: never."
    )
    apply: bool = Field(
        True,
        description="Make the suggested change if the promotion gate would pass. False: only suggest it.",
    )


class Tolerance(Strict):
    """How far an adapted model may be from a retrain."""

    relative_bound: float = Field(
        0.01, gt=0, description="Linear models: bound on the distance of the weights, relative to their norm."
    )
    disagreement: float = Field(
        0.01,
        ge=0,
        le=1,
        description="Fraction of predictions in which a retrain may differ before it replaces the adapted model.",
    )


class EvaluationPolicy(Strict):
    """How many rows of the holdout versions are evaluated on. All versions use the same rows."""

    rows: int = Field(20_000, ge=1, le=1_000_000, description="Maximum number of rows.")


class ErasurePolicy(Strict):
    """What an erasure does in addition to removing the person's data."""

    keep_superseded: Duration | None = Field(
        None, description="How long versions trained on the person's data are kept, out of use; null: not at all."
    )
    retrain: bool | None = Field(
        None,
        description="Retrain from scratch: networks instead of adapting them, other models in addition, so that the "
        "receipt states the disagreement. Null: only networks, because nothing is proven about an adapted network.",
    )
    encoder: Literal["require", "report"] = Field(
        "require",
        description="What happens if the model's encoder was fitted on examples before the request. `require`: the "
        "erasure fails with `encoder_required` until the model has another encoder. `report`: the receipt states it.",
    )

    def retrains(self, network: bool) -> bool:
        """Whether an erasure retrains a model."""
        return network if self.retrain is None else self.retrain


class VersionsPolicy(Strict):
    """Which versions keep their weights. Versions that are in use always keep them."""

    keep: int = Field(50, ge=1, le=1_000_000, description="Number of the newest versions that keep their weights.")
    every: Duration | None = Field(
        "7d", description="Of the older versions, one per interval keeps its weights; null: none."
    )


class GatePolicy(Strict):
    """The promotion gate: a new version must not be worse than the champion and the last confirmed version."""

    metric: Literal["loss", "accuracy", "auc", "average_precision", "f1", "brier", "rmse", "mae"] = Field(
        "loss", description="Metric on the holdout that is compared."
    )
    worse_by: float = Field(0.05, ge=0, le=1e6, description="Largest relative deterioration of the metric.")
    sigmas: float = Field(
        3, ge=0, le=1e6, description="Smallest deterioration that counts, in standard errors of the paired difference."
    )
    action: Literal["reject", "warn"] = Field(
        "reject",
        description="`reject`: do not promote the version, and put its new examples into quarantine. "
        "`warn`: promote the version and send the event `version.rejected`.",
    )


class HoldoutPolicy(Strict):
    """Which examples without `split` are held out."""

    model_config = ConfigDict(frozen=True)

    fraction: float = Field(0.1, ge=0, lt=1, description="Fraction of the examples or subjects that is held out.")
    by: Literal["example", "subject"] = Field(
        "subject",
        description="`subject`: all examples of a subject get the same split; examples without a subject are drawn by "
        "their id. `example`: every example is drawn by its id.",
    )


FORMS = ("number", "object")


def form_of_holdout(given: object) -> str:
    """The tag of a holdout policy: pydantic then reports the errors of one form only."""
    return "object" if isinstance(given, dict | HoldoutPolicy) else "number"


Headline = Literal[
    "loss",
    "log_loss",
    "accuracy",
    "balanced_accuracy",
    "auc",
    "average_precision",
    "f1",
    "brier",
    "calibration",
    "recall_at_precision",
    "rmse",
    "mae",
    "r2",
]


class Policy(Strict):
    """The settings of a model that can be changed without changing the model itself."""

    memory: MemoryPolicySchema = MemoryPolicySchema()
    adapt: AdaptPolicy = AdaptPolicy()
    retrain: RetrainPolicy = RetrainPolicy()
    tune: TunePolicy = TunePolicy()
    tolerance: Tolerance = Tolerance()
    evaluation: EvaluationPolicy = EvaluationPolicy()
    erasure: ErasurePolicy = ErasurePolicy()
    gate: GatePolicy = GatePolicy()
    certify: Literal["always", "removals", "never", "pass"] = Field(
        "always",
        description="Which adapted versions of linear models get a certificate; pass: all, by a pass over the data.",
    )
    promote: Literal["automatic", "manual"] = Field(
        "automatic", description="automatic: new versions become the champion; manual: they stay candidates."
    )
    holdout: Annotated[
        Annotated[float, Field(ge=0, lt=1), Tag("number")] | Annotated[HoldoutPolicy, Tag("object")],
        Discriminator(form_of_holdout),
    ] = Field(
        0.1,
        description="Fraction of the examples without `split` that is held out, by subject; or an object that also "
        "says whether subjects or single examples are drawn. A change applies to new examples only.",
    )
    segments: list[Annotated[str, Field(min_length=1, max_length=200)]] = Field(
        [],
        max_length=5,
        description="Category or boolean columns of a table. The promotion gate, the quality report and drift also "
        "judge each of their values separately.",
        examples=[["country"]],
    )
    headline: Headline | None = Field(
        None,
        description="Metric that pages, lists and MLflow show first. Default: accuracy for classes, average precision "
        "for labels and for binary targets with a class below 10 % of the holdout, RMSE for numbers and counts.",
    )
    threshold: float = Field(
        0.5,
        ge=0,
        le=1,
        description="Binary targets: the predicted class is 1 if the probability is above this; labels: those with a"
        " probability above this are predicted. A change takes effect "
        "without retraining; the metrics of earlier versions stay as they were computed.",
    )
    recall_at_precision: float | None = Field(
        None,
        ge=0,
        le=1,
        description="Binary targets: precision at which `recall_at_precision` is computed; null: not at all.",
    )
    challenger: int | None = Field(
        None,
        ge=1,
        lt=2**31,
        description="Number of a version that also predicts examples without a label, for comparison with the champion "
        "once their labels arrive; null: none.",
    )
    expire: Duration | None = Field(
        None, description="Age after which examples are removed; null: never.", examples=["365d"]
    )
    versions: VersionsPolicy | None = Field(
        VersionsPolicy(),
        description="Which versions keep their weights, in the store and in MLflow. The others are purged: their "
        "metrics and their entries in the history stay. null: all versions keep their weights.",
    )

    @property
    def holdout_draw(self) -> HoldoutPolicy:
        """How new examples are held out, whichever form the policy has."""
        return HoldoutPolicy(fraction=self.holdout) if isinstance(self.holdout, float) else self.holdout

    def plain(self) -> PolicyDocument:
        """The policy as stored in the database."""
        return PolicyDocument(self.model_dump(mode="json"))


def policy_of(model: Model) -> Policy:
    return Policy.model_validate(model.policy)


def patch(policy: Policy, change: dict[str, object]) -> Policy:
    """The policy with some of its fields changed."""
    old = policy.plain()
    parts = old | {"holdout": policy.holdout_draw.model_dump()}  # a patch of `by` alone keeps the fraction
    merged = {name: merge(parts.get(name), value) for name, value in change.items()}
    try:
        return Policy.model_validate({**old, **merged})
    except ValidationError as error:
        located = drop_other_forms([([step for step in e["loc"] if step not in FORMS], e) for e in error.errors()])
        messages = describe_all(Policy, located)
        problems = [(("policy", *path), message) for (path, _), message in zip(located, messages, strict=True)]
        place, message = problems[0]
        raise Invalid("policy_invalid", f"{'.'.join(map(str, place))}: {message}", problems) from error


def merge(old: object, new: object) -> object:
    return {**old, **new} if isinstance(old, dict) and isinstance(new, dict) else new
