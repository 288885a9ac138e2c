"""The quality report: test-then-train metrics by job, hour, day or week."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

import numpy as np

from core.quality.estimates import PairedEstimate, compare
from core.quality.scored_rows import LOWER_IS_BETTER, Metric
from core.quality.windows import LENGTHS, Scores, merge, start_of
from core.tables.quality import QualityWindow

ContestantMetrics = dict[str, dict[str, float]]


@dataclass(frozen=True)
class WindowGroup:
    """The stored windows that make up one item of the report."""

    start: datetime
    end: datetime
    windows: Sequence[QualityWindow]

    @property
    def first_position(self) -> int:
        return min(window.first_position for window in self.windows)

    @property
    def last_position(self) -> int:
        return max(window.last_position for window in self.windows)

    @property
    def rows(self) -> int:
        return sum(window.rows for window in self.windows)

    @property
    def alarm(self) -> bool:
        return any(window.alarm for window in self.windows)

    @property
    def rounded(self) -> bool:
        return any(window.rounded for window in self.windows)

    def newest(self, contestant: str) -> int | None:
        """Number of the newest version that scored as a contestant."""
        numbers = [getattr(window, contestant) for window in self.windows]
        return max((number for number in numbers if number is not None), default=None)

    def metrics(self, target: str) -> ContestantMetrics:
        """Metrics of all rows together; means of the windows' metrics if predictions were deleted by an erasure."""
        if len(self.windows) == 1:
            return self.windows[0].metrics
        parts = [Scores.from_bytes(window.scores, target) for window in self.windows if window.scores is not None]
        return merge(parts).metrics() if len(parts) == len(self.windows) else average(self.windows)


def average(windows: Iterable[QualityWindow]) -> ContestantMetrics:
    """Means of the windows' metrics by their rows, for contestants and metrics that all windows have.

    The standard error of a mean is that of independent windows.
    """
    windows = list(windows)
    total = sum(window.rows for window in windows)
    contestants = set.intersection(*[set(window.metrics) for window in windows])
    found: ContestantMetrics = {}
    for name in sorted(contestants):
        shared = set.intersection(*[set(window.metrics[name]) for window in windows])
        for metric in sorted(shared):
            values = [window.rows * window.metrics[name][metric] for window in windows]
            combined = math.hypot(*values) if metric.endswith("_se") else sum(values)
            found.setdefault(name, {})[metric] = combined / total
    return found


def group(windows: Iterable[QualityWindow], by: str) -> list[WindowGroup]:
    """Group stored windows by "job", "hour", "day" or "week", in order of their first positions."""
    found: dict[object, list[QualityWindow]] = {}
    for window in windows:
        key = window.job_id if by == "job" else start_of(window.start, by)
        found.setdefault(key, []).append(window)
    groups = []
    for members in found.values():
        if by == "job":
            start, end = min(w.start for w in members), max(w.start for w in members) + LENGTHS["hour"]
        else:
            start = start_of(members[0].start, by)
            end = start + LENGTHS[by]
        groups.append(WindowGroup(start, end, members))
    return sorted(groups, key=lambda group: group.first_position)


VERDICT_DAYS = 7
SIGNIFICANT = 2.0
"""Standard errors beyond which a difference counts as one."""


def compare_with_frozen(windows: Sequence[QualityWindow], target: str, metric: Metric) -> PairedEstimate | None:
    """The champion and the frozen version on the examples of the last days; None if there is nothing to compare.

    Windows with an alarm do not count: bad labels say nothing about either model.
    """
    windows = [window for window in windows if not window.alarm]
    if not windows:
        return None
    newest = max(window.start for window in windows)
    recent = [w for w in windows if w.scores is not None and newest - w.start < timedelta(days=VERDICT_DAYS)]
    if not recent:
        return None
    scores = merge([Scores.from_bytes(w.scores, target) for w in recent if w.scores is not None])
    if not {"champion", "frozen"} <= scores.contestants.keys():
        return None
    clusters = np.unique(scores.cluster, return_inverse=True)[1]
    return compare(scores.contestants["frozen"], scores.contestants["champion"], metric, clusters)


def describe_verdict(pair: PairedEstimate | None, metric: Metric) -> str:
    """One sentence about what the updates are worth.

    >>> describe_verdict(PairedEstimate(0.726, 0.758, se=0.008, rows=2100), "accuracy")
    'On the last 2 100 new examples, updating raised accuracy from 0.726 to 0.758 (4.0 standard errors).'
    >>> describe_verdict(PairedEstimate(0.55, 0.549, se=0.004, rows=900), "loss")
    'On the last 900 new examples, the updated and the frozen model did equally well: loss 0.549 and 0.55.'
    """
    if pair is None or not math.isfinite(pair.difference):
        return "There are no recent scores to compare the updated model with the frozen one."
    label, rows = metric.replace("_", " "), f"{pair.rows:,}".replace(",", " ")
    before, after = f"{pair.first:.3g}", f"{pair.second:.3g}"
    sigmas = abs(pair.difference) / pair.se if pair.se > 0 else 0.0
    if sigmas < SIGNIFICANT:
        equal = "the updated and the frozen model did equally well"
        return f"On the last {rows} new examples, {equal}: {label} {after} and {before}."
    verb = "raised" if pair.difference > 0 else "lowered"
    better = (pair.difference < 0) == (metric in LOWER_IS_BETTER)
    warning = "" if better else " The frozen first version would have done better: check recent data."
    change = f"updating {verb} {label} from {before} to {after} ({sigmas:.1f} standard errors)"
    return f"On the last {rows} new examples, {change}.{warning}"
