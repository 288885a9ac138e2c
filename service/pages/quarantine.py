"""The banner of a model's page about rejected versions whose examples are in quarantine."""

from __future__ import annotations

from dataclasses import dataclass

from sqlalchemy.orm import Session

from core.ledger.quarantine import quarantined_versions
from core.tables.documents import GateComparison
from core.tables.models import Model
from core.tables.versions import Version
from core.tracking.formats import figure, percent, show_metric

CLEAR_SIGMAS = 2.0
"""A difference below this many standard errors is described as chance."""


@dataclass(frozen=True)
class ComparisonLine:
    """One comparison of a rejected version with an older one."""

    where: str
    """Which holdout examples were compared."""
    rows: int
    version: int | None
    """Number of the older version."""
    before: str
    after: str
    verdict: str
    """The difference with its standard error."""
    is_worse: bool


@dataclass(frozen=True)
class QuarantinedBatch:
    """A rejected version and its examples."""

    version: int
    examples: int
    metric: str
    lines: list[ComparisonLine]
    """Empty if the metrics were deleted."""


def read_batches(session: Session, model: Model) -> list[QuarantinedBatch]:
    """The rejected versions that a person has to decide about, oldest first."""
    if not model.quarantined_count:
        return []
    counts = sorted(quarantined_versions(session, model).items())
    return [describe_batch(session.get_one(Version, (model.id, number)), count) for number, count in counts]


def describe_batch(version: Version, examples: int) -> QuarantinedBatch:
    gate = version.gate
    if gate is None:
        return QuarantinedBatch(version.number, examples, "", [])
    confirmed = gate.get("confirmed")
    differs = confirmed is not None and confirmed["version"] != gate["version"]
    compared: list[tuple[str, GateComparison | None]] = [
        ("from before the batch", gate),
        ("from before the last confirmed version", confirmed if differs else None),
        ("of the batch itself", gate.get("batch")),
    ]
    for segment in gate.get("segments", [])[:1]:
        where = f"from before the batch with {segment['column']} = {segment['value']} (the worst segment)"
        compared.insert(1, (where, segment))
    lines = [
        describe_comparison(where, comparison)
        for where, comparison in compared
        if comparison is not None and comparison["champion"] is not None
    ]
    return QuarantinedBatch(version.number, examples, gate["metric"], lines)


def describe_comparison(where: str, comparison: GateComparison) -> ComparisonLine:
    metric, relative = comparison["metric"], comparison["relative"]
    return ComparisonLine(
        where,
        comparison["rows"],
        comparison["version"],
        show_metric(comparison["champion"], metric),
        show_metric(comparison["candidate"], metric),
        describe_difference(comparison["difference"], comparison["difference_se"], relative),
        comparison["difference"] is None or (relative or 0) > 0,
    )


def describe_difference(difference: float | None, error: float | None, relative: float | None) -> str:
    """A difference in words, with its standard error; `relative` is above 0 if the version is worse.

    >>> describe_difference(0.2771, 0.0213, 0.672)
    'worse by 0.277 ± 0.021 (67.2 %)'
    >>> describe_difference(0.031, 0.01, -0.04), describe_difference(0.01, 0.02, 0.01)
    ('better by 0.031 ± 0.010 (4.0 %)', 'no clear difference (0.010 ± 0.020)')
    >>> describe_difference(None, None, None)
    'worse: the metric is infinite'
    """
    if difference is None:
        return "worse: the metric is infinite"
    size = figure(abs(difference)) if error is None else f"{figure(abs(difference))} ± {figure(error)}"
    if error is not None and abs(difference) < CLEAR_SIGMAS * error:
        return f"no clear difference ({size})"
    if relative is None:
        return f"different by {size}"
    return f"{'worse' if relative > 0 else 'better'} by {size} ({percent(abs(relative))})"
