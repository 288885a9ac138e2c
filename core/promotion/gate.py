"""The promotion gate: a new version is compared with the champion and with the last confirmed version.

A certificate says that a version equals a retrain; it does not say that either of them is good. The gate compares
versions on holdout rows that both older versions could be judged by: rows at or before their own positions, which
arrived without an alarm. The second comparison prevents many small deteriorations from adding up. A version from before
a change of the columns, the classes or the loss predicts the rows as they were then, and is compared by a metric of the
predictions.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import cast

import numpy as np
from numpy.typing import NDArray

from core.models.policy import GatePolicy
from core.promotion.gate_rule import Limits, judge, unjudged
from core.quality.label_rows import restrict, shared_labels
from core.quality.scored_rows import Metric, ScoredRows
from core.quality.segments import Segment, corrected_sigmas
from core.quality.standard_errors import MIN_ROWS, Estimate, PairedEstimate, compare, estimate
from core.tables.documents import GateComparison, GateDocument, SegmentComparison

SCHEMA_CHANGED = "schema_changed"
HOLDOUT_LOST = "holdout_lost"
SUBSTITUTES: tuple[Metric, ...] = ("log_loss", "auc", "accuracy", "mae")
"""Metrics that take the place of the loss if its kind has changed, the best first. A squared hinge gives no
probabilities, so it is compared by its ranking."""


@dataclass(frozen=True)
class ComparedRows:
    """Holdout rows that the candidate and an older version have both predicted."""

    positions: NDArray[np.int64]
    old: ScoredRows
    candidate: ScoredRows
    clusters: NDArray[np.int64] | None = None
    """(n,) number of each row's subject; None if no row has one."""
    segments: Sequence[Segment] = ()
    """Rows that are also judged by themselves."""

    def clusters_of(self, mask: NDArray[np.bool_]) -> NDArray[np.int64] | None:
        """Numbers 0, 1, 2, ... of the subjects of some rows, for standard errors."""
        return None if self.clusters is None else np.unique(self.clusters[mask], return_inverse=True)[1]


@dataclass(frozen=True)
class Reference:
    """An older version that a candidate is compared with."""

    number: int
    position: int
    rows: ComparedRows | None
    """None if the version cannot predict."""
    reason: str = ""
    """Why there are no predictions."""
    same_loss: bool = True
    """Whether both versions have the same loss function; otherwise another metric is compared."""
    carried: float = 0.0
    """How much worse the version is than confirmed versions that erasures purged: this much less is allowed."""

    def earlier(self, alarms: Sequence[tuple[int, int]]) -> NDArray[np.bool_]:
        """Mask of the rows at or before the version's position that arrived without an alarm.

        `alarms` are the first and last positions of batches with an alarm.
        """
        if self.rows is None:
            return np.zeros(0, bool)
        positions = self.rows.positions
        mask: NDArray[np.bool_] = positions <= self.position
        for first, last in alarms:
            mask &= (positions < first) | (positions > last)
        return mask


def run_gate(
    champion: Reference, confirmed: Reference | None, alarms: Sequence[tuple[int, int]], policy: GatePolicy
) -> GateDocument:
    """Compare a candidate with the champion and with the last confirmed version."""
    against_champion = compare_with(champion, champion.earlier(alarms), policy)
    gate = cast(GateDocument, {**against_champion, "action": policy.action})
    if confirmed is not None:
        same = (confirmed.number, confirmed.carried) == (champion.number, champion.carried)
        gate["confirmed"] = against_champion if same else compare_with(confirmed, confirmed.earlier(alarms), policy)
        gate["passed"] = combine(gate["passed"], gate["confirmed"]["passed"])
    if segments := compare_segments(champion, alarms, policy):
        gate["segments"] = segments
        failed = any(segment["passed"] is False for segment in segments)
        gate["passed"] = combine(gate["passed"], False if failed else None)
    if champion.rows is not None and (newer := champion.rows.positions > champion.position).any():
        gate["batch"] = compare_with(champion, newer, policy)
    return gate


def compare_with(old: Reference, mask: NDArray[np.bool_], policy: GatePolicy) -> GateComparison:
    """Judge a candidate by an older version, on some of the holdout rows."""
    metric = None if old.rows is None else shared_metric(policy.metric, old.rows, old.same_loss)
    if old.rows is None or metric is None:
        return {**unjudged(policy.metric, 0, old.reason or SCHEMA_CHANGED), "version": old.number}
    first, second = old.rows.old.take(mask), old.rows.candidate.take(mask)
    if first.labels != second.labels:  # judged by the labels that both versions have
        names = shared_labels([first, second])
        first, second = restrict(first, names), restrict(second, names)
    weight = first.weight
    if len(first) >= MIN_ROWS and weight.max() * MIN_ROWS > weight.sum():
        # a single row would decide, and the standard error would not show it: the mean is about its own value
        first, second = (replace(rows, weight=np.ones(len(rows))) for rows in (first, second))
    pair = compare(first, second, metric, old.rows.clusters_of(mask))
    left = max(0.0, (1 + policy.worse_by) / (1 + old.carried) - 1)
    found: GateComparison = {**judge(pair, Limits(metric, left, policy.sigmas)), "version": old.number}
    if old.carried:
        found["carried"] = old.carried
    return found


def compare_corrected(
    old: Reference,
    corrected: NDArray[np.bool_],
    alarms: Sequence[tuple[int, int]],
    before: Estimate,
    policy: GatePolicy,
) -> GateComparison | None:
    """How far corrections have increased the loss of an older version on the holdout; None if no row was corrected.

    A version is not judged by rows that were corrected since. Without this comparison, somebody who corrects the
    holdout first could poison the model unnoticed.

    Parameters
    ----------
    corrected
        (n,) mask of the rows that were corrected.
    before
        The loss of the older version on the holdout, which counts if too few rows are as they were.
    """
    if old.rows is None or not corrected.any():
        return None
    scored = replace(old.rows.old, weight=np.ones(len(corrected)))  # no single row should decide
    kept = old.earlier(alarms) & ~corrected
    if kept.sum() >= MIN_ROWS:
        before = estimate(scored.take(kept), "loss", old.rows.clusters_of(kept))
    after = estimate(scored.take(corrected), "loss", old.rows.clusters_of(corrected))
    share = float(corrected.sum() / (corrected.sum() + kept.sum()))
    total, error = before.value + share * (after.value - before.value), share * math.hypot(before.se, after.se)
    pair = PairedEstimate(before.value, total, error, int(corrected.sum()))
    return {**judge(pair, Limits("loss", policy.worse_by, policy.sigmas)), "version": old.number}


def compare_segments(
    champion: Reference, alarms: Sequence[tuple[int, int]], policy: GatePolicy
) -> list[SegmentComparison]:
    """Judge a candidate on each segment with enough rows, the worst segment first."""
    earlier = champion.earlier(alarms)
    masks = [(segment, segment.rows & earlier) for segment in (champion.rows.segments if champion.rows else ())]
    judged = [(segment, mask) for segment, mask in masks if mask.sum() >= MIN_ROWS]
    if not judged:
        return []
    strict = policy.model_copy(update={"sigmas": corrected_sigmas(policy.sigmas, len(judged))})
    compared = [
        cast(
            SegmentComparison,
            {**compare_with(champion, mask, strict), "column": segment.column, "value": segment.value},
        )
        for segment, mask in judged
    ]
    return sorted(compared, key=lambda found: -how_much_worse(found))


def how_much_worse(found: GateComparison) -> float:
    """The relative deterioration: infinite without a finite metric, and negative infinite if it was not judged."""
    if found["relative"] is not None:
        return found["relative"]
    return -math.inf if found["passed"] is None else math.inf


def shared_metric(wanted: Metric, rows: ComparedRows, same_loss: bool) -> Metric | None:
    """The metric that two versions are compared by: the policy's or, if it means something else for one of them,
    another metric of their predictions; None if they have none in common.

    Losses of different kinds have different units. If the kind of the target changed, from two classes to several,
    only metrics that are means over rows mean the same.
    """
    same_target = rows.old.target == rows.candidate.target
    # without the policy's metric, as for the AUC of numbers, the loss decides
    candidates: tuple[Metric, ...] = (wanted, "loss", *SUBSTITUTES) if same_target else ("log_loss", "accuracy", "mae")
    shared = set(rows.old.metrics).intersection(rows.candidate.metrics)
    return next((metric for metric in candidates if metric in shared and (same_loss or metric != "loss")), None)


def combine(one: bool | None, other: bool | None) -> bool | None:
    """Whether both comparisons passed; a failure of either decides, and so does a success if the other is unknown.

    >>> combine(True, None), combine(None, None), combine(True, False), combine(None, False)
    (True, None, False, False)
    """
    known = [passed for passed in (one, other) if passed is not None]
    return all(known) if known else None


def not_compared(reason: str, policy: GatePolicy) -> GateDocument:
    """The result for a version that there is nothing to compare with."""
    return cast(GateDocument, {**unjudged(policy.metric, 0, reason), "action": policy.action})
