"""When a model is adapted and retrained, how much it remembers, and what is promoted."""

from __future__ import annotations

import re
from datetime import timedelta
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Field, ValidationError

from core.errors import Invalid
from core.models.spec import Strict

UNITS = {"s": "seconds", "m": "minutes", "h": "hours", "d": "days"}


def duration(text: str) -> timedelta:
    """
    >>> duration("90s")
    datetime.timedelta(seconds=90)
    """
    found = re.fullmatch(r"([1-9][0-9]{0,8})([smhd])", text, re.ASCII)
    if not found:
        raise ValueError("must be a number and a unit: 30s, 10m, 24h, 7d")
    length = timedelta(**{UNITS[found[2]]: int(found[1])})
    if length > timedelta(days=3650):
        raise ValueError("must not exceed ten years")
    return length


def checked(text: str) -> str:
    duration(text)
    return text


Duration = Annotated[str, AfterValidator(checked), Field(max_length=12, examples=["10m"])]


class MemoryPolicy(Strict):
    """How much of the past is remembered: a share, of at most `cap` examples."""

    fraction: float = Field(0.02, gt=0, le=1)
    cap: int = Field(5_000, ge=1, le=1_000_000)
    select: Literal["auto", "curvature", "leverage", "coverage", "random"] = "auto"
    """See `core.kprior.Select`."""
    balance: bool = False


class AdaptPolicy(Strict):
    """Adapt once this many changes are pending or the oldest of them is this old; null switches either off."""

    after_changes: int | None = Field(100, ge=1, le=2**31)
    every: Duration | None = "10m"


class RetrainPolicy(Strict):
    """How often a full retrain checks the adapted model; null: only when asked for."""

    every: Duration | None = "24h"


class Tolerance(Strict):
    """How far from a retrain an adapted model may be."""

    relative_bound: float = Field(0.01, gt=0)
    disagreement: float = Field(0.01, ge=0, le=1)


class EvaluationPolicy(Strict):
    """On how many rows of the holdout versions are measured, at the most: the same rows for all of them."""

    rows: int = Field(20_000, ge=1, le=1_000_000)


class ErasurePolicy(Strict):
    """What an erasure does beyond forgetting the person."""

    keep_superseded: Duration | None = None
    """How long versions that knew the person are kept; null: not at all."""
    retrain: bool = False
    """Whether a full retrain is made as well: the receipt names the disagreement, and a network gives way to it."""


class Policy(Strict):
    """All that can be changed about a model without changing the model."""

    memory: MemoryPolicy = MemoryPolicy()
    adapt: AdaptPolicy = AdaptPolicy()
    retrain: RetrainPolicy = RetrainPolicy()
    tolerance: Tolerance = Tolerance()
    evaluation: EvaluationPolicy = EvaluationPolicy()
    erasure: ErasurePolicy = ErasurePolicy()
    certify: Literal["always", "removals", "never", "pass"] = "always"
    """Which adapted versions get a certificate, without a look at the data where that is enough; "pass": by a look."""
    promote: Literal["automatic", "manual"] = "automatic"
    holdout: float = Field(0.1, ge=0, lt=1)


def patched(policy: dict[str, Any], change: dict[str, Any]) -> dict[str, Any]:
    """The policy with some of its fields changed; those not named stay."""
    merged = {
        name: {**policy[name], **value} if isinstance(policy.get(name), dict) and isinstance(value, dict) else value
        for name, value in change.items()
    }
    try:
        return Policy.model_validate({**policy, **merged}).model_dump(mode="json")
    except ValidationError as error:
        wrong = [(("policy", *e["loc"]), e["msg"].removeprefix("Value error, ")) for e in error.errors()]
        place, message = wrong[0]
        raise Invalid("policy_invalid", f"{'.'.join(map(str, place))}: {message}", wrong) from error
