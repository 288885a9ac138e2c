"""Metrics with standard errors, for one version or for the difference of two versions on the same rows.

Most metrics are estimated by their influence function: the contribution psi_i of row i, with
mean 0, such that metric - truth = sum_i psi_i to first order. The standard error is the root of the sum over clusters
(sum_{i in cluster} psi_i)^2, where a cluster is all rows of one subject, and that of a paired difference uses
psi_i of the one version less psi_i of the other. For AUC the influence function is DeLong's (DeLong, DeLong &
Clarke-Pearson 1988; clustered: Obuchowski 1997). Average precision, F1 and the recall at a precision are bootstrapped
over clusters, with the same draws for both versions; the error of one version without clusters follows from leaving out
single rows (`core/quality/jackknife.py`), which is cheaper.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from core.quality.jackknife import Ranking, class_counts, f1_of, leave_one_out_error
from core.quality.scored_rows import Metric, Numbers, ScoredRows

REPLICATES = 200
"""Bootstrap replicates: the standard error is then itself known to about 5 %."""
BOOTSTRAP_ROWS = 5_000
"""Rows that are bootstrapped at most; the standard error is scaled to the number of all rows."""
BOOTSTRAPPED = ("average_precision", "f1", "recall_at_precision")
Clusters = NDArray[np.int64]


@dataclass(frozen=True)
class Estimate:
    """A metric and its standard error; both are NaN where the metric is undefined."""

    value: float
    se: float


@dataclass(frozen=True)
class PairedEstimate:
    """A metric of two versions on the same rows."""

    first: float
    second: float
    se: float
    """Standard error of the difference."""
    rows: int

    @property
    def difference(self) -> float:
        return self.second - self.first


def estimate(rows: ScoredRows, metric: Metric, clusters: Clusters | None = None) -> Estimate:
    """A metric of one version.

    Parameters
    ----------
    clusters
        (n,) number of each row's cluster, 0, 1, 2, ...; None: every row is its own cluster.
    """
    value = value_of(rows, metric)
    if not math.isfinite(value):
        return Estimate(math.nan, math.nan)
    if clusters is None and metric in BOOTSTRAPPED:
        return Estimate(value, leave_one_out_error(rows, metric, value))
    if metric in BOOTSTRAPPED:
        return Estimate(value, bootstrap([rows], metric, clusters))
    return Estimate(value, clustered_error(influence(rows, metric, value), clusters))


def compare(first: ScoredRows, second: ScoredRows, metric: Metric, clusters: Clusters | None = None) -> PairedEstimate:
    """A metric of two versions that predicted the same rows, with the standard error of its difference."""
    one, other = value_of(first, metric), value_of(second, metric)
    if not (math.isfinite(one) and math.isfinite(other)):
        return PairedEstimate(one, other, math.nan, len(first))
    if metric in BOOTSTRAPPED:
        return PairedEstimate(one, other, bootstrap([first, second], metric, clusters), len(first))
    contributions = influence(second, metric, other) - influence(first, metric, one)
    return PairedEstimate(one, other, clustered_error(contributions, clusters), len(first))


def value_of(rows: ScoredRows, metric: Metric) -> float:
    """The metric itself; NaN where it is undefined: without rows, or AUC of a single class."""
    if len(rows) == 0:
        return math.nan
    match metric:
        case "auc":
            positive = rows.y == 1
            if positive.all() or not positive.any():
                return math.nan
            score = np.nan_to_num(rows.score)
            return float(fraction_below(score[~positive], score[positive]).mean())
        case "average_precision":
            return Ranking.of(rows).average_precision()
        case "recall_at_precision":
            return Ranking.of(rows).recall_at(rows.precision or 0.0)
        case "f1":
            counts = class_counts(rows)
            chosen = slice(1, 2) if rows.target == "binary" else slice(None)
            return float(f1_of(np.stack([counts.matched, counts.total])[:, chosen]))
        case "balanced_accuracy":
            return float(np.mean([recall for _, recall in recalls(rows)]))
        case "rmse":
            return math.sqrt(mean_of(rows, metric))
        case _:
            return mean_of(rows, metric)


def mean_of(rows: ScoredRows, metric: Metric) -> float:
    return float(rows.weight @ rows.per_row(metric) / rows.weight.sum())


def recalls(rows: ScoredRows) -> list[tuple[NDArray[np.bool_], float]]:
    """For each class that occurs: a mask of its rows, and the share of them that is predicted correctly."""
    right = rows.predicted == rows.truth
    masks = [rows.truth == label for label in np.unique(rows.truth)]
    return [(mask, float(right[mask].mean())) for mask in masks]


def fraction_below(values: Numbers, limits: Numbers) -> Numbers:
    """For each limit, the share of values below it; equal values count half."""
    ordered = np.sort(values)
    ranks: Numbers = (np.searchsorted(ordered, limits, "left") + np.searchsorted(ordered, limits, "right")) / 2
    return ranks / len(ordered)


def influence(rows: ScoredRows, metric: Metric, value: float) -> Numbers:
    """(n,) the contribution of each row to the metric's deviation from its expected value."""
    if metric == "auc":
        positive, score = rows.y == 1, np.nan_to_num(rows.score)
        contributions = np.empty(len(rows))
        contributions[positive] = (fraction_below(score[~positive], score[positive]) - value) / positive.sum()
        contributions[~positive] = (1 - fraction_below(score[positive], score[~positive]) - value) / (~positive).sum()
        return contributions
    if metric == "balanced_accuracy":
        right, groups = (rows.predicted == rows.truth).astype(float), recalls(rows)
        contributions = np.zeros(len(rows))
        for mask, recall in groups:
            contributions[mask] = (right[mask] - recall) / (mask.sum() * len(groups))
        return contributions
    values = rows.per_row(metric)
    square = metric == "rmse"
    scaled: Numbers = rows.weight * (values - (value**2 if square else value)) / rows.weight.sum()
    if square:
        return scaled / (2 * value) if value else np.zeros(len(rows))
    return scaled


def clustered_error(contributions: Numbers, clusters: Clusters | None) -> float:
    """The root of the sum of squares over clusters, with the correction for few clusters."""
    sums = contributions if clusters is None else np.bincount(clusters, contributions)
    count = len(sums)
    return math.sqrt(float(sums @ sums) * count / (count - 1)) if count > 1 else math.nan


def bootstrap(versions: list[ScoredRows], metric: Metric, clusters: Clusters | None) -> float:
    """The standard error of a metric, or of the difference of two versions, over resampled clusters."""
    rng = np.random.default_rng(0)  # the same rows give the same error
    total = len(versions[0])
    scale = 1.0
    if total > BOOTSTRAP_ROWS:
        kept = np.sort(rng.choice(total, BOOTSTRAP_ROWS, replace=False))
        versions = [rows.take(kept) for rows in versions]
        clusters = None if clusters is None else np.unique(clusters[kept], return_inverse=True)[1]
        scale = math.sqrt(BOOTSTRAP_ROWS / total)
    count = len(versions[0])
    groups = np.arange(count) if clusters is None else clusters
    size = int(groups.max()) + 1
    if size < 2:
        return math.nan
    draws = rng.multinomial(size, np.full(size, 1 / size), REPLICATES).astype(float)[:, groups]
    values = weighted_value(versions, metric, draws)
    spread = values[0] if len(values) == 1 else values[1] - values[0]
    spread = spread[np.isfinite(spread)]
    return scale * float(spread.std(ddof=1)) if len(spread) > 1 else math.nan


def weighted_value(versions: list[ScoredRows], metric: Metric, draws: Numbers) -> list[Numbers]:
    """For each version the metric under each of B draws, (B, n) multiplicities of the rows."""
    if metric == "f1":
        return [f1_scores(rows, draws) for rows in versions]
    return [curve_values(rows, draws, rows.precision if metric == "recall_at_precision" else None) for rows in versions]


def curve_values(rows: ScoredRows, draws: Numbers, at_precision: float | None = None) -> Numbers:
    """(B,) average precision, or the recall at a precision: `jackknife.Ranking` for weighted rows."""
    order = np.argsort(-rows.score, kind="stable")
    score, positive = rows.score[order], (rows.y[order] == 1).astype(float)
    drawn = draws[:, order]
    last = np.append(np.flatnonzero(np.diff(score)), len(score) - 1)  # rows with the same score share a threshold
    hits = np.cumsum(drawn * positive, 1)[:, last]
    chosen = np.cumsum(drawn, 1)[:, last]
    precision = hits / np.maximum(chosen, 1e-300)
    gained = np.diff(hits, axis=1, prepend=0.0)
    if at_precision is not None:
        with np.errstate(invalid="ignore", divide="ignore"):
            recall: Numbers = np.where(precision >= at_precision, hits, 0.0).max(1) / hits[:, -1]
        return recall
    with np.errstate(invalid="ignore", divide="ignore"):
        values: Numbers = (gained * precision).sum(1) / hits[:, -1]
    return values


def f1_scores(rows: ScoredRows, draws: Numbers) -> Numbers:
    """(B,) F1 of class 1 for binary targets, the mean over the classes that occur otherwise."""
    predicted, truth = rows.predicted, rows.truth
    labels = [1] if rows.target == "binary" else np.union1d(predicted, truth).tolist()
    matched = [draws @ ((predicted == label) & (truth == label)).astype(float) for label in labels]
    total = [draws @ ((predicted == label).astype(float) + (truth == label)) for label in labels]
    return f1_of(np.stack([np.stack(matched, 1), np.stack(total, 1)]))
