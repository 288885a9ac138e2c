"""The promotion gate: a new version is compared with the champion and with the last confirmed version.

A certificate says that a version equals a retrain; it does not say that either of them is good. The gate compares
versions on holdout rows that both older versions could be judged by: rows at or before their own positions, which
arrived without an alarm. The second comparison prevents many small deteriorations from adding up.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import cast

import numpy as np
from numpy.typing import NDArray

from core.models.policy import GatePolicy
from core.quality.estimates import compare
from core.quality.gate_rule import MIN_ROWS, Limits, judge, unjudged
from core.quality.scored_rows import Metric, ScoredRows
from core.quality.segments import Segment, corrected_sigmas
from core.tables.documents import GateComparison, GateDocument, SegmentComparison


@dataclass(frozen=True)
class Reference:
    """An older version that a candidate is compared with."""

    number: int
    position: int
    rows: ScoredRows | None
    """What it predicts for the holdout; None if it cannot predict the model's present examples."""
    reason: str = ""
    """Why there are no predictions."""


@dataclass(frozen=True)
class Holdout:
    """The holdout rows that versions are compared on."""

    positions: NDArray[np.int64]
    alarms: Sequence[tuple[int, int]] = ()
    """First and last positions of batches that arrived with an alarm."""
    segments: Sequence[Segment] = ()
    """Rows that are also judged by themselves."""
    clusters: NDArray[np.int64] | None = None
    """(n,) number of each row's subject; None if no row has one."""

    def up_to(self, position: int) -> NDArray[np.bool_]:
        """Mask of the rows at or before a position that arrived without an alarm."""
        mask: NDArray[np.bool_] = self.positions <= position
        for first, last in self.alarms:
            mask &= (self.positions < first) | (self.positions > last)
        return mask

    def clusters_of(self, mask: NDArray[np.bool_]) -> NDArray[np.int64] | None:
        """Numbers 0, 1, 2, ... of the subjects of some rows, for standard errors."""
        return None if self.clusters is None else np.unique(self.clusters[mask], return_inverse=True)[1]


def run_gate(
    candidate: ScoredRows, holdout: Holdout, champion: Reference, confirmed: Reference | None, policy: GatePolicy
) -> GateDocument:
    """Compare a candidate with the champion and with the last confirmed version."""
    limits = Limits(metric_for(policy.metric, candidate), policy.worse_by, policy.sigmas)
    against_champion = compare_with(candidate, champion, holdout, holdout.up_to(champion.position), limits)
    gate = cast(GateDocument, {**against_champion, "action": policy.action})
    if confirmed is not None and confirmed.number != champion.number:
        gate["confirmed"] = compare_with(candidate, confirmed, holdout, holdout.up_to(confirmed.position), limits)
        gate["passed"] = combine(gate["passed"], gate["confirmed"]["passed"])
    if segments := compare_segments(candidate, champion, holdout, limits):
        gate["segments"] = segments
        failed = any(segment["passed"] is False for segment in segments)
        gate["passed"] = combine(gate["passed"], False if failed else None)
    newer = holdout.positions > champion.position
    if champion.rows is not None and newer.any():
        gate["batch"] = compare_with(candidate, champion, holdout, newer, limits)
    return gate


def compare_with(
    candidate: ScoredRows, old: Reference, holdout: Holdout, mask: NDArray[np.bool_], limits: Limits
) -> GateComparison:
    """Judge a candidate by an older version, on some of the holdout rows."""
    if old.rows is None:
        return {**unjudged(limits.metric, 0, old.reason), "version": old.number}
    pair = compare(old.rows.take(mask), candidate.take(mask), limits.metric, holdout.clusters_of(mask))
    return {**judge(pair, limits), "version": old.number}


def compare_segments(
    candidate: ScoredRows, champion: Reference, holdout: Holdout, limits: Limits
) -> list[SegmentComparison]:
    """Judge a candidate on each segment with enough rows, the worst segment first."""
    earlier = holdout.up_to(champion.position)
    masks = [(segment, segment.rows & earlier) for segment in holdout.segments]
    judged = [(segment, mask) for segment, mask in masks if mask.sum() >= MIN_ROWS]
    if champion.rows is None or not judged:
        return []
    strict = replace(limits, sigmas=corrected_sigmas(limits.sigmas, len(judged)))
    compared = [
        cast(
            SegmentComparison,
            {
                **compare_with(candidate, champion, holdout, mask, strict),
                "column": segment.column,
                "value": segment.value,
            },
        )
        for segment, mask in judged
    ]
    return sorted(compared, key=lambda found: -(math.inf if found["relative"] is None else found["relative"]))


def combine(one: bool | None, other: bool | None) -> bool | None:
    """Whether both comparisons passed; a failure of either decides, and so does a success if the other is unknown.

    >>> combine(True, None), combine(None, None), combine(True, False), combine(None, False)
    (True, None, False, False)
    """
    known = [passed for passed in (one, other) if passed is not None]
    return all(known) if known else None


def metric_for(wanted: Metric, rows: ScoredRows) -> Metric:
    """The policy's metric, or the loss if the target has no such metric."""
    return wanted if wanted in rows.metrics else "loss"


def not_compared(reason: str, policy: GatePolicy) -> GateDocument:
    """The result for a version that there is nothing to compare with."""
    return cast(GateDocument, {**unjudged(policy.metric, 0, reason), "action": policy.action})
