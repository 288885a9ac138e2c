"""When a model is adapted and retrained, how much it remembers, and what is promoted."""

from __future__ import annotations

import re
from datetime import timedelta
from typing import Annotated, Literal

from pydantic import AfterValidator, Field, ValidationError

from core.errors import Invalid
from core.models.complaints import describe
from core.models.fields import Strict
from core.tables.models import Model, PolicyDocument

UNITS = {"s": "seconds", "m": "minutes", "h": "hours", "d": "days"}


def duration(text: str) -> timedelta:
    """
    >>> duration("90s")
    datetime.timedelta(seconds=90)
    """
    found = re.fullmatch(r"([1-9][0-9]{0,8})([smhd])", text, re.ASCII)
    if not found:
        raise ValueError("must be a number above 0 and a unit: 30s, 10m, 24h, 7d")
    length = timedelta(**{UNITS[found[2]]: int(found[1])})
    if length > timedelta(days=3650):
        raise ValueError("must not exceed ten years")
    return length


def check_duration(text: str) -> str:
    duration(text)
    return text


Duration = Annotated[str, AfterValidator(check_duration), Field(max_length=12, examples=["10m"])]


class MemoryPolicySchema(Strict):
    """How much of the past is remembered: a share, of at most `cap` examples."""

    fraction: float = Field(0.02, gt=0, le=1, description="Share of the training examples that is remembered.")
    cap: int = Field(5_000, ge=1, le=1_000_000, description="Examples of the memory, at the most.")
    select: Literal["auto", "curvature", "leverage", "coverage", "random"] = Field(
        "auto", description="How they are chosen; auto: leverage for linear models, else random."
    )
    balance: bool = Field(False, description="As many of each class, whatever their shares; for binary and classes.")


class AdaptPolicy(Strict):
    """Adapt once this many changes are pending or the oldest of them is this old; null switches either off."""

    after_changes: int | None = Field(100, ge=1, le=2**31, description="So many changes wait.")
    every: Duration | None = Field("10m", description="The oldest of them waits for so long.")


class RetrainPolicy(Strict):
    """How often a full retrain checks the adapted model; null: only when asked for."""

    every: Duration | None = Field("24h", description="If anything changed since the last one.")


class Tolerance(Strict):
    """How far from a retrain an adapted model may be."""

    relative_bound: float = Field(
        0.01,
        gt=0,
        description="Of linear models: the bound on the distance of the weights, as a share of their length.",
    )
    disagreement: float = Field(
        0.01, ge=0, le=1, description="The share of predictions in which a retrain may differ before it takes over."
    )


class EvaluationPolicy(Strict):
    """On how many rows of the holdout versions are measured, at the most: the same rows for all of them."""

    rows: int = Field(20_000, ge=1, le=1_000_000, description="Rows of the holdout, at the most.")


class ErasurePolicy(Strict):
    """What an erasure does beyond forgetting the person."""

    keep_superseded: Duration | None = Field(
        None, description="How long versions that knew the person are kept, out of use; null: not at all."
    )
    retrain: bool = Field(
        False,
        description="Whether a full retrain is made as well: the receipt names the disagreement, and it takes the "
        "place of an adapted network.",
    )


class Policy(Strict):
    """All that can be changed about a model without changing the model."""

    memory: MemoryPolicySchema = MemoryPolicySchema()
    adapt: AdaptPolicy = AdaptPolicy()
    retrain: RetrainPolicy = RetrainPolicy()
    tolerance: Tolerance = Tolerance()
    evaluation: EvaluationPolicy = EvaluationPolicy()
    erasure: ErasurePolicy = ErasurePolicy()
    certify: Literal["always", "removals", "never", "pass"] = Field(
        "always",
        description="Which adapted versions of linear models get a certificate; pass: all, by a look at every example.",
    )
    promote: Literal["automatic", "manual"] = Field(
        "automatic", description="Whether a new version becomes champion by itself; manual: it stays a candidate."
    )
    holdout: float = Field(
        0.1, ge=0, lt=1, description="Share of the examples that is held out, of those sent without `split`."
    )

    expire: Duration | None = Field(
        None, description="Examples older than this are removed; null: they stay.", examples=["365d"]
    )

    def plain(self) -> PolicyDocument:
        """As the database holds it."""
        return PolicyDocument(self.model_dump(mode="json"))


def policy_of(model: Model) -> Policy:
    return Policy.model_validate(model.policy)


def patch(policy: Policy, change: dict[str, object]) -> Policy:
    """The policy with some of its fields changed; those not named stay."""
    old = policy.plain()
    merged = {name: merge(old.get(name), value) for name, value in change.items()}
    try:
        return Policy.model_validate({**old, **merged})
    except ValidationError as error:
        wrong = [(("policy", *e["loc"]), describe(e)) for e in error.errors()]
        place, message = wrong[0]
        raise Invalid("policy_invalid", f"{'.'.join(map(str, place))}: {message}", wrong) from error


def merge(old: object, new: object) -> object:
    return {**old, **new} if isinstance(old, dict) and isinstance(new, dict) else new
