"""The promotion gate on the pages: how a version compares with older ones, and which batches are in quarantine."""

from __future__ import annotations

from dataclasses import dataclass

from sqlalchemy.orm import Session

from core.ledger.quarantine import quarantined_versions
from core.tables.documents import GateComparison, GateDocument
from core.tables.models import Model
from core.tables.versions import Version, VersionState
from core.tracking.formats import figure, percent, show_metric

CLEAR_SIGMAS = 2.0
"""A difference below this many standard errors is described as chance."""

ROUNDING = 1e-9
"""A smaller relative difference is due to rounding."""

REASONS = {
    "first_version": "this is the first version",
    "too_few_rows": "there were too few holdout examples from before the batch",
    "schema_changed": "the versions have no metric in common, because the target or the loss changed",
    "version_purged": "the version to compare with, or the result, was deleted by an erasure",
    "not_judged": "the version is older than the promotion gate",
}
"""Why a version was not judged."""


@dataclass(frozen=True)
class ComparisonLine:
    """One comparison of a version with an older one."""

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
    if version.gate is None:
        return QuarantinedBatch(version.number, examples, "", [])
    return QuarantinedBatch(version.number, examples, version.gate["metric"], list_comparisons(version.gate))


def list_comparisons(gate: GateDocument) -> list[ComparisonLine]:
    """The comparisons that were possible."""
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
    return [
        describe_comparison(where, comparison)
        for where, comparison in compared
        if comparison is not None and comparison["champion"] is not None
    ]


def describe_verdict(version: Version, gate: GateDocument) -> str:
    """What the gate found, in a sentence or two."""
    limits = "by more than the policy allows"
    if gate["passed"]:
        return f"Passed: the version is not worse than the older ones {limits}."
    if gate["passed"] is None:
        return f"Not judged: {REASONS.get(gate.get('reason', ''), 'there was nothing to compare')}."
    if version.state is VersionState.REJECTED:
        return f"Failed: the version is worse {limits}. It was rejected."
    if gate.get("reason") == "holdout_lost":
        return (
            "Failed: removals or corrections took away the holdout examples to compare on. The version was not"
            " rejected, because such changes are never delayed."
        )
    corrected = gate.get("corrections")
    if corrected is not None and corrected["passed"] is False and corrected["champion"] is not None:
        before, after = (show_metric(corrected[side], "loss") for side in ("champion", "candidate"))
        return (
            f"Failed: the corrected holdout examples change the loss of version {corrected['version']} from {before} to"
            f" {after}, which is worse {limits}. The version was not rejected, because corrections are never delayed."
        )
    return (
        f"Failed: the version is worse {limits}. It was not rejected, because removals, corrections and requested"
        " changes are never delayed, or because the policy asks for a warning only."
    )


def describe_comparison(where: str, comparison: GateComparison) -> ComparisonLine:
    metric = comparison["metric"]
    verdict = describe_difference(comparison["difference"], comparison["difference_se"], comparison["relative"])
    return ComparisonLine(
        where,
        comparison["rows"],
        comparison["version"],
        show_metric(comparison["champion"], metric),
        show_metric(comparison["candidate"], metric),
        verdict,
        verdict.startswith("worse"),
    )


def describe_difference(difference: float | None, error: float | None, relative: float | None) -> str:
    """A difference in words, with its standard error; `relative` is above 0 if the version is worse.

    >>> describe_difference(0.2771, 0.0213, 0.672)
    'worse by 0.277 ± 0.021 (67.2 %)'
    >>> describe_difference(0.031, 0.01, -0.04), describe_difference(0.01, 0.02, 0.01)
    ('better by 0.031 ± 0.010 (4.0 %)', 'no clear difference (0.010 ± 0.020)')
    >>> describe_difference(None, None, None), describe_difference(2.8e-17, 1.8e-17, 2.6e-16)
    ('worse: the metric is infinite', 'no difference')
    """
    if difference is None:
        return "worse: the metric is infinite"
    if relative is not None and abs(relative) < ROUNDING:
        return "no difference"
    size = figure(abs(difference)) if error is None else f"{figure(abs(difference))} ± {figure(error)}"
    if error is not None and abs(difference) < CLEAR_SIGMAS * error:
        return f"no clear difference ({size})"
    if relative is None:
        return f"different by {size}"
    return f"{'worse' if relative > 0 else 'better'} by {size} ({percent(abs(relative))})"
