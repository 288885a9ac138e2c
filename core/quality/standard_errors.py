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
from core.quality.label_rows import MACRO_AVERAGES, each_label
from core.quality.scored_rows import Metric, Numbers, ScoredRows

REPLICATES = 200
"""Bootstrap replicates: the standard error is then itself known to about 5 %."""
BOOTSTRAP_ROWS = 5_000
"""Rows that are bootstrapped at most; the standard error is scaled to the number of all rows."""
MIN_ROWS = 30
"""Rows that the gate and reports need: below this, standard errors are not reliable."""
MIN_CLASS_ROWS = 5
"""Rows of each class that the error of a difference of AUCs needs. The ranks of one or two rows say nothing about how
much others would differ: one candidate in four would be rejected by chance."""
BOOTSTRAPPED: tuple[Metric, ...] = ("average_precision", "f1", "recall_at_precision")
LEFT_OUT: tuple[Metric, ...] = (*BOOTSTRAPPED, "balanced_accuracy")
"""Metrics whose errors, where many versions are described, come from leaving rows out: a row that is the only one of
its class has no influence function."""
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
        return leave_out(rows, metric)
    if metric in BOOTSTRAPPED:
        return Estimate(value, bootstrap([rows], metric, clusters))
    return Estimate(value, clustered_error(influence(rows, metric, value), clusters))


def estimate_reported(rows: ScoredRows, metric: Metric, clusters: Clusters | None = None) -> Estimate:
    """A metric of one version as reports show it: `LEFT_OUT` metrics have the error of leaving rows out."""
    return leave_out(rows, metric, clusters) if metric in LEFT_OUT else estimate(rows, metric, clusters)


def leave_out(rows: ScoredRows, metric: Metric, clusters: Clusters | None = None) -> Estimate:
    """A metric of one version, with the error of leaving rows out.

    The error of a mean over labels is the mean of their errors, which is never too small: errors of labels may have any
    correlation.
    """
    value = value_of(rows, metric)
    if not math.isfinite(value):
        return Estimate(math.nan, math.nan)
    if rows.target == "labels":
        errors = [leave_one_out_error(one, metric, own, clusters) for one, own in defined_labels(rows, metric)]
        return Estimate(value, float(np.mean(errors)))
    return Estimate(value, leave_one_out_error(rows, metric, value, clusters))


def compare(first: ScoredRows, second: ScoredRows, metric: Metric, clusters: Clusters | None = None) -> PairedEstimate:
    """A metric of two versions that predicted the same rows, with the standard error of its difference."""
    one, other = value_of(first, metric), value_of(second, metric)
    if not (math.isfinite(one) and math.isfinite(other)):
        return PairedEstimate(one, other, math.nan, len(first))
    if metric in BOOTSTRAPPED:
        return PairedEstimate(one, other, bootstrap([first, second], metric, clusters), len(first))
    if metric == "auc" and fewest_of_a_class(first) < MIN_CLASS_ROWS:
        return PairedEstimate(one, other, math.nan, len(first))
    contributions = influence(second, metric, other) - influence(first, metric, one)
    return PairedEstimate(one, other, clustered_error(contributions, clusters), len(first))


def fewest_of_a_class(rows: ScoredRows) -> int:
    """Rows of the rarer class; of several labels, of the label with the fewest for which there are both."""
    counts = [
        int(min(positive.sum(), (~positive).sum()))
        for one in (each_label(rows) if rows.target == "labels" else [rows])
        for positive in [one.truth == 1]
    ]
    return min((count for count in counts if count), default=0)


def value_of(rows: ScoredRows, metric: Metric) -> float:
    """The metric itself; NaN where it is undefined: without rows, or AUC of a single class."""
    if metric not in rows.computed:
        rows.computed[metric] = compute_value(rows, metric)
    return float(rows.computed[metric])


def compute_value(rows: ScoredRows, metric: Metric) -> float:
    if len(rows) == 0:
        return math.nan
    if rows.target == "labels" and metric in MACRO_AVERAGES:
        values = [value for _, value in defined_labels(rows, metric)]
        return float(np.mean(values)) if values else math.nan
    match metric:
        case "auc":
            positive = rows.truth == 1
            if positive.all() or not positive.any():
                return math.nan
            return float(rows.below[positive].mean())
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


def defined_labels(rows: ScoredRows, metric: Metric) -> list[tuple[ScoredRows, float]]:
    """The rows of each label for which a metric is defined, and its value."""
    found = [(one, value_of(one, metric)) for one in each_label(rows)]
    return [(one, value) for one, value in found if math.isfinite(value)]


def mean_of(rows: ScoredRows, metric: Metric) -> float:
    # not a product by BLAS, which starts threads for so many rows
    return float((rows.weight * rows.per_row(metric)).sum() / rows.weight.sum())


def recalls(rows: ScoredRows) -> list[tuple[NDArray[np.bool_], float]]:
    """For each class that occurs: a mask of its rows, and the share of them that is predicted correctly."""
    right = rows.predicted == rows.truth
    masks = [rows.truth == label for label in np.unique(rows.truth)]
    return [(mask, float(right[mask].mean())) for mask in masks]


def influence(rows: ScoredRows, metric: Metric, value: float) -> Numbers:
    """(n,) the contribution of each row to the metric's deviation from its expected value."""
    if ("influence", metric) not in rows.computed:
        rows.computed["influence", metric] = compute_influence(rows, metric, value)
    found: Numbers = rows.computed["influence", metric]
    return found


def compute_influence(rows: ScoredRows, metric: Metric, value: float) -> Numbers:
    if rows.target == "labels" and metric in MACRO_AVERAGES:
        parts = [influence(one, metric, own) for one, own in defined_labels(rows, metric)]
        return np.mean(parts, 0)  # type: ignore[no-any-return]
    if metric == "auc":
        positive = rows.truth == 1
        contributions = np.empty(len(rows))
        contributions[positive] = (rows.below[positive] - value) / positive.sum()
        contributions[~positive] = (1 - rows.below[~positive] - value) / (~positive).sum()
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
    return math.sqrt(float(np.square(sums).sum()) * count / (count - 1)) if count > 1 else math.nan


def bootstrap(versions: list[ScoredRows], metric: Metric, clusters: Clusters | None) -> float:
    """The standard error of a metric, or of the difference of two versions, over resampled clusters."""
    rng = np.random.default_rng(0)  # the same rows give the same error
    total = len(versions[0])
    scale = 1.0
    if total > BOOTSTRAP_ROWS:
        kept, scale = draw_part(rng, np.arange(total) if clusters is None else clusters)
        versions = [rows.take(kept) for rows in versions]
        clusters = None if clusters is None else np.unique(clusters[kept], return_inverse=True)[1]
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


def draw_part(rng: np.random.Generator, clusters: Clusters) -> tuple[Clusters, float]:
    """Random clusters with about `BOOTSTRAP_ROWS` rows: the indices of these rows, and the factor by which the standard
    error of all clusters is smaller.

    Whole clusters, because a part of each would look like independent rows.
    """
    sizes = np.bincount(clusters)
    order = rng.permutation(len(sizes))
    count = max(2, int(np.searchsorted(np.cumsum(sizes[order]), BOOTSTRAP_ROWS, "right")))
    return np.flatnonzero(np.isin(clusters, order[:count])), math.sqrt(min(1.0, count / len(sizes)))


def weighted_value(versions: list[ScoredRows], metric: Metric, draws: Numbers) -> list[Numbers]:
    """For each version the metric under each of B draws, (B, n) multiplicities of the rows."""
    if versions[0].target == "labels":
        return [mean_weighted_value(rows, metric, draws) for rows in versions]
    if metric == "f1":
        return [f1_scores(rows, draws) for rows in versions]
    return [curve_values(rows, draws, rows.precision if metric == "recall_at_precision" else None) for rows in versions]


def mean_weighted_value(rows: ScoredRows, metric: Metric, draws: Numbers) -> Numbers:
    """(B,) the mean of a metric over the labels for which it is defined."""
    parts = np.stack([weighted_value([one], metric, draws)[0] for one in each_label(rows)])
    there = np.isfinite(parts)
    values: Numbers = np.where(there, parts, 0.0).sum(0) / np.where(there.any(0), there.sum(0), np.nan)
    return values


def curve_values(rows: ScoredRows, draws: Numbers, at_precision: float | None = None) -> Numbers:
    """(B,) average precision, or the recall at a precision: `jackknife.Ranking` for weighted rows."""
    order = np.argsort(-rows.score, kind="stable")
    score, positive = rows.score[order], (rows.truth[order] == 1).astype(float)
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
