"""The quality report: test-then-train metrics by job, hour, day or week."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import cached_property

import numpy as np

from core.clock import now
from core.quality.evaluation_windows import LENGTHS, Scores, merge, start_of
from core.quality.scored_rows import LOWER_IS_BETTER, Metric
from core.quality.standard_errors import MIN_ROWS, PairedEstimate, compare
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

    @cached_property
    def scores(self) -> Scores | None:
        """The predictions for all rows; None if an erasure deleted some, or the target's kind changed in between."""
        parts = [Scores.from_bytes(window.scores) for window in self.windows if window.scores is not None]
        complete = len(parts) == len(self.windows) and len({part.target for part in parts}) == 1
        return merge(parts) if complete else None

    def metrics(self) -> ContestantMetrics:
        """Metrics of all rows together.

        If predictions were deleted by an erasure, only metrics that can be computed exactly from those of the windows.
        """
        if len(self.windows) == 1:
            return self.windows[0].metrics
        return self.scores.metrics() if self.scores is not None else combine(self.windows, ROW_MEANS)

    def segments(self, metric: Metric) -> list[SegmentMetrics]:
        """The champion's metrics in each segment with enough rows, the worst first."""
        scores = self.scores if any(window.scores is not None for window in self.windows) else None
        if scores is None or "champion" not in scores.contestants:
            return []
        found = [
            SegmentMetrics(column, value, int(mask.sum()), scores.take(mask).metrics_of("champion"))
            for column, values in scores.segments.items()
            for value in np.unique(values).tolist()
            if (mask := values == value).sum() >= MIN_ROWS
        ]
        sign = -1 if metric in LOWER_IS_BETTER else 1
        # a metric that is undefined in a segment, such as the AUC of a single class, says nothing bad about it
        return sorted(found, key=lambda segment: sign * segment.metrics.get(metric, sign * math.inf))


@dataclass(frozen=True)
class SegmentMetrics:
    """The champion's metrics on the examples of a window that have the same value of a column."""

    column: str
    value: str
    rows: int
    metrics: dict[str, float]


ROW_MEANS = ("loss", "log_loss", "brier", "accuracy", "mae", "rmse")
"""Metrics that are means over rows, or the root of such a mean: those of several windows follow from those of each."""


def combine(windows: Iterable[QualityWindow], metrics: Collection[str] | None = None) -> ContestantMetrics:
    """The metrics of several windows together, for contestants and metrics that all windows have.

    Means over rows are weighted by the weights of the windows' rows, and so are the squares of the root mean square
    error. The standard error is that of independent windows. The baseline, and metrics such as the AUC, cannot be
    computed from the windows' own: they are averaged, which is good enough for a chart. With `metrics`, only these are
    computed, and no baseline.
    """
    windows = list(windows)
    total = sum(window.weight for window in windows)
    contestants = set.intersection(*[set(window.metrics) for window in windows])
    found: ContestantMetrics = {}
    for name in sorted(contestants.difference(() if metrics is None else ("baseline",))):
        shared = set.intersection(*[set(window.metrics[name]) for window in windows])
        for metric in sorted(shared):
            plain = metric.removesuffix("_se")
            if metrics is not None and plain not in metrics:
                continue
            values = [window.metrics[name][metric] for window in windows]
            weights = [window.weight / total for window in windows]
            roots = [window.metrics[name].get(plain, 0.0) for window in windows] if plain == "rmse" else None
            found.setdefault(name, {})[metric] = combine_values(values, weights, metric.endswith("_se"), roots)
    return found


def combine_values(
    values: Sequence[float], weights: Sequence[float], errors: bool, roots: Sequence[float] | None
) -> float:
    """The weighted mean of values, or its standard error from theirs; `roots` are roots of mean squares.

    >>> combine_values([1.0, 3.0], [0.5, 0.5], errors=False, roots=None)
    2.0
    >>> combine_values([1.0, 7.0], [0.5, 0.5], errors=False, roots=[1.0, 7.0])
    5.0
    """
    if roots is None:
        terms = [weight * value for weight, value in zip(weights, values, strict=True)]
        return math.hypot(*terms) if errors else sum(terms)
    square = sum(weight * root**2 for weight, root in zip(weights, roots, strict=True))
    if not errors or not square:
        return math.sqrt(square)
    # the error of a square is twice the root times the error of the root
    terms = [weight * root * value for weight, root, value in zip(weights, roots, values, strict=True)]
    return math.hypot(*terms) / math.sqrt(square)


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


def leave_out_future(windows: Sequence[QualityWindow]) -> list[QualityWindow]:
    """The windows without those of event times in the future: one wrong year would otherwise be the last week for ever.

    Clocks may differ by a day.
    """
    latest = now() + timedelta(days=1)
    return [window for window in windows if window.start <= latest]


def compare_with_frozen(windows: Sequence[QualityWindow], metric: Metric) -> PairedEstimate | None:
    """The champion and the frozen version on the examples of the last days; None if there is nothing to compare.

    Windows with an alarm do not count: bad labels say nothing about either model.
    """
    windows = [window for window in leave_out_future(windows) if not window.alarm]
    if not windows:
        return None
    newest = max(window.start for window in windows)
    recent = [w for w in windows if w.scores is not None and newest - w.start < timedelta(days=VERDICT_DAYS)]
    if not recent:
        return None
    parts = [Scores.from_bytes(w.scores) for w in recent if w.scores is not None]
    scores = merge([part for part in parts if part.target == parts[-1].target])
    if not {"champion", "frozen"} <= scores.contestants.keys():
        return None
    clusters = np.unique(scores.cluster, return_inverse=True)[1]
    return compare(scores.contestants["frozen"], scores.contestants["champion"], metric, clusters)


def describe_verdict(pair: PairedEstimate | None, metric: Metric) -> str:
    """One sentence about what the updates are worth.

    >>> describe_verdict(PairedEstimate(0.726, 0.758, se=0.008, rows=2100), "auc")
    'On the last 2 100 new examples without an alarm, updating raised auc from 0.726 to 0.758 (4.0 standard errors).'
    >>> describe_verdict(PairedEstimate(0.55, 0.549, se=0.004, rows=900), "loss")
    'On the last 900 new examples without an alarm, updating made no clear difference: loss 0.549 instead of 0.55.'
    """
    if pair is None or not math.isfinite(pair.difference):
        return "There are no recent scores to compare the updated model with the frozen one."
    label, rows = metric.replace("_", " "), f"{pair.rows:,}".replace(",", " ")
    before, after = f"{pair.first:.3g}", f"{pair.second:.3g}"
    sigmas = abs(pair.difference) / pair.se if pair.se > 0 else 0.0
    if sigmas < SIGNIFICANT:
        equal = f"updating made no clear difference: {label} {after} instead of {before}"
        return f"On the last {rows} new examples without an alarm, {equal}."
    verb = "raised" if pair.difference > 0 else "lowered"
    better = (pair.difference < 0) == (metric in LOWER_IS_BETTER)
    warning = "" if better else " The frozen first version would have done better: check recent data."
    change = f"updating {verb} {label} from {before} to {after} ({sigmas:.1f} standard errors)"
    return f"On the last {rows} new examples without an alarm, {change}.{warning}"
