"""The rule of the promotion gate: how much worse than an older version a new version may be.

The defaults come from simulations of poisoned batches and of drift.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from core.quality.scored_rows import LOWER_IS_BETTER, Metric
from core.quality.standard_errors import MIN_ROWS, PairedEstimate
from core.tables.documents import GateComparison


@dataclass(frozen=True)
class Limits:
    """How much worse a version may be than the version it replaces."""

    metric: Metric = "loss"
    worse_by: float = 0.05
    """Relative to the old version."""
    sigmas: float = 3.0
    """In standard errors of the difference."""


def judge(pair: PairedEstimate, limits: Limits) -> GateComparison:
    """Reject a candidate whose metric is worse by more than `worse_by` and by more than `sigmas` standard errors.

    Examples
    --------
    >>> judge(PairedEstimate(0.50, 0.58, se=0.01, rows=2000), Limits())["passed"]
    False
    >>> judge(PairedEstimate(0.50, 0.52, se=0.001, rows=2000), Limits())["passed"]  # significant, but only 4 %
    True
    >>> judge(PairedEstimate(0.50, 0.58, se=0.04, rows=2000), Limits())["passed"]  # 16 %, but within chance
    True
    """
    if pair.rows < MIN_ROWS or not math.isfinite(pair.first):
        return unjudged(limits.metric, pair.rows, "too_few_rows")
    worse = pair.difference if limits.metric in LOWER_IS_BETTER else -pair.difference
    # a loss that is not a number or infinite is worse than any limit
    finite = math.isfinite(worse)
    if finite and not math.isfinite(pair.se):  # all rows are about one subject, or a class has too few
        return unjudged(limits.metric, pair.rows, "too_few_rows")
    relative = worse / max(abs(pair.first), 1e-12) if finite else math.inf
    significant = not finite or worse > limits.sigmas * pair.se
    passed = not (significant and relative > limits.worse_by)
    return {
        "metric": limits.metric,
        "version": None,
        "champion": pair.first,
        "candidate": pair.second if math.isfinite(pair.second) else None,
        "difference": pair.difference if finite else None,
        "difference_se": pair.se if math.isfinite(pair.se) else None,
        "relative": relative if math.isfinite(relative) else None,
        "rows": pair.rows,
        "passed": passed,
    }


def unjudged(metric: str, rows: int, reason: str) -> GateComparison:
    """The comparison of a version that could not be judged."""
    return {
        "metric": metric,
        "version": None,
        "champion": None,
        "candidate": None,
        "difference": None,
        "difference_se": None,
        "relative": None,
        "rows": rows,
        "passed": None,
        "reason": reason,
    }
