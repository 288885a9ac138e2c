"""Standard errors of metrics that are not means over rows, from the change of the metric when one row is left out.

The standard error is the root of the sum of the squared changes (the jackknife's, to first order). No single row
changes the metric by more than this, so that the grid of two standard errors in `core.versions.privacy_rounding` hides
the row. If a subject has several rows, their changes are summed first. Interchangeable rows share one computation: the
cost is that of sorting the rows.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from core.quality.scored_rows import Metric, Numbers, ScoredRows


@dataclass(frozen=True)
class Ranking:
    """Binary rows in descending order of their scores; rows with the same score are one step of the curve."""

    threshold: Numbers
    """(G,) score of each step."""
    hits: Numbers
    """(G,) rows of class 1 at or above the score."""
    chosen: Numbers
    """(G,) rows at or above the score."""

    @classmethod
    def of(cls, rows: ScoredRows) -> Ranking:
        score, positive = np.nan_to_num(rows.score)[rows.order], rows.truth[rows.order] == 1
        last = np.append(np.flatnonzero(np.diff(score)), len(score) - 1)
        return cls(score[last], np.cumsum(positive)[last].astype(float), last + 1.0)

    @property
    def positives(self) -> float:
        return float(self.hits[-1])

    @property
    def precision(self) -> Numbers:
        return self.hits / self.chosen

    def average_precision(self) -> float:
        """Sum over steps of (recall_k - recall_{k-1}) precision_k, as scikit-learn defines it; NaN without class 1."""
        gained = np.diff(self.hits, prepend=0.0)
        return float((gained * self.precision).sum() / self.positives) if self.positives else math.nan

    def recall_at(self, precision: float) -> float:
        """The largest recall of a threshold with at least this precision; 0 if there is none, NaN without class 1."""
        if not self.positives:
            return math.nan
        return float(self.hits[self.precision >= precision].max(initial=0.0) / self.positives)


Places = NDArray[np.int64]


def leave_one_out_error(rows: ScoredRows, metric: Metric, value: float, clusters: Places | None = None) -> float:
    """The standard error of a metric whose value is known.

    `clusters` are (n,) numbers 0, 1, 2, ... of the rows' subjects; None: every row has its own. NaN for one subject.
    """
    match metric:
        case "average_precision":
            ranking = Ranking.of(rows)
            changed, place = leave_out_of_average_precision(ranking), place_in_ranking(rows, ranking)
        case "recall_at_precision":
            ranking = Ranking.of(rows)
            changed, place = leave_out_of_recall(ranking, rows.precision or 0.0), place_in_ranking(rows, ranking)
        case "balanced_accuracy":
            changed, place = leave_out_of_balanced_accuracy(rows)
        case _:
            changed, place = leave_out_of_f1(rows)
    changes = changed[place] - value
    if clusters is not None:
        changes = np.bincount(clusters, changes).astype(np.float64)
        if len(changes) < 2:
            return math.nan
    return math.sqrt(float(np.square(changes).sum()))


def place_in_ranking(rows: ScoredRows, ranking: Ranking) -> Places:
    """(n,) the step of each row, plus the number of steps G unless the row is of class 1."""
    step = np.searchsorted(-ranking.threshold, -np.nan_to_num(rows.score))
    return np.where(rows.truth == 1, step, len(ranking.threshold) + step)


def leave_out_of_average_precision(ranking: Ranking) -> Numbers:
    """(2 G,) average precision without a row of class 1 of each step, and without another row of each step."""
    gained = np.diff(ranking.hits, prepend=0.0)
    hits, fewer, positives = ranking.hits, np.maximum(ranking.chosen - 1, 1.0), ranking.positives
    above = np.cumsum(gained * ranking.precision) - gained * ranking.precision
    without_other = (above + sum_from(gained * hits / fewer)) / positives
    after = gained * (hits - 1) / fewer
    own = (gained - 1) * (hits - 1) / fewer
    # without the only row of class 1 the metric is undefined, and counts as 0
    without_hit = (above + own + sum_from(after) - after) / max(positives - 1, 1.0) * (positives > 1)
    return np.concatenate([without_hit, without_other])


def sum_from(values: Numbers) -> Numbers:
    """(G,) the sum of each value and all later values."""
    sums: Numbers = np.cumsum(values[::-1])[::-1]
    return sums


def leave_out_of_recall(ranking: Ranking, precision: float) -> Numbers:
    """(2 G,) the recall at a precision without a row of class 1 of each step, and without another row of each step."""
    fewer, positives, steps = np.maximum(ranking.chosen - 1, 1.0), ranking.positives, np.arange(len(ranking.hits))
    before = last_step(ranking.precision >= precision)
    # the last step that reaches the precision, among the steps from which the row is missing, or else above them
    parts = []
    for hits, total in ((ranking.hits - 1, max(positives - 1, 1.0)), (ranking.hits, positives)):
        feasible = np.flatnonzero((hits / fewer >= precision) & (hits > 0))
        last = feasible[-1] if len(feasible) else -1
        earlier = np.append(-1, before[:-1])
        reached = np.where(last >= steps, hits[last], np.where(earlier >= 0, ranking.hits[earlier], 0.0))
        parts.append(reached / total)
    return np.concatenate(parts)


def last_step(mask: NDArray[np.bool_]) -> NDArray[np.int64]:
    """(G,) the last step at or before each step where the mask is true; -1 if there is none."""
    steps: NDArray[np.int64] = np.maximum.accumulate(np.where(mask, np.arange(len(mask)), -1))
    return steps


def leave_out_of_balanced_accuracy(rows: ScoredRows) -> tuple[Numbers, Places]:
    """(2 C,) balanced accuracy without a correct or an incorrect row of each class, and (n,) the place of each row."""
    right = rows.predicted == rows.truth
    _, label = np.unique(rows.truth, return_inverse=True)
    n, h = np.bincount(label).astype(float), np.bincount(label, right)
    recall, classes = h / n, len(n)
    alone, fewer = n == 1, np.maximum(n - 1, 1)
    vanished = (recall.sum() - recall) / max(classes - 1, 1)
    without_hit = np.where(alone, vanished, (recall.sum() - recall + (h - 1) / fewer) / classes)
    without_miss = np.where(alone, vanished, (recall.sum() - recall + h / fewer) / classes)
    return np.concatenate([without_hit, without_miss]), np.where(right, label, classes + label)


def leave_out_of_f1(rows: ScoredRows) -> tuple[Numbers, Places]:
    """(pairs,) F1 without a row of each pair of true and predicted class, and (n,) the pair of each row."""
    classes = int(max(rows.truth.max(), rows.predicted.max())) + 1
    pairs, place = np.unique(rows.truth * classes + rows.predicted, return_inverse=True)
    truth, guess = np.divmod(pairs, classes)
    counts = class_counts(rows)
    if rows.target == "binary":  # F1 of class 1 alone
        return f1_of(counts.without(truth, guess)[:, :, 1:2]), place
    per_class = np.where(counts.total > 0, 2 * counts.matched / np.maximum(counts.total, 1), 0.0)
    present, total = int((counts.total > 0).sum()), float(per_class.sum())
    same = truth == guess
    changed = np.full(len(pairs), total)
    there = np.full(len(pairs), float(present))
    for label, which, lost in ((truth, np.ones(len(pairs), bool), np.where(same, 2, 1)), (guess, ~same, 1)):
        left = counts.total[label] - lost
        f1 = np.where(left > 0, 2 * (counts.matched[label] - same) / np.maximum(left, 1), 0.0)
        changed += np.where(which, f1 - per_class[label], 0.0)
        there -= which & (left <= 0)
    return changed / np.maximum(there, 1), place


@dataclass(frozen=True)
class ClassCounts:
    """Correctly predicted rows of each class, and predicted plus actual rows: F1 is 2 matched / total."""

    matched: NDArray[Any]
    total: NDArray[Any]

    def without(self, truth: NDArray[Any], guess: NDArray[Any]) -> NDArray[Any]:
        """(2, pairs, C) matched and total without one row of each pair of true and predicted class."""
        counts = np.tile(np.stack([self.matched, self.total])[:, None], (1, len(truth), 1)).astype(float)
        rows = np.arange(len(truth))
        counts[0, rows, truth] -= truth == guess
        np.subtract.at(counts[1], (rows, truth), 1)
        np.subtract.at(counts[1], (rows, guess), 1)
        return counts


def class_counts(rows: ScoredRows) -> ClassCounts:
    classes = max(2, int(max(rows.truth.max(), rows.predicted.max())) + 1)
    counted = (rows.truth[rows.truth == rows.predicted], rows.predicted, rows.truth)
    matched, predicted, actual = (np.bincount(labels, minlength=classes) for labels in counted)
    return ClassCounts(matched, predicted + actual)


def f1_of(counts: NDArray[Any]) -> Numbers:
    """F1, averaged over the classes that occur or are predicted, from (2, ..., C) matched and total counts."""
    matched, total = counts
    there = total > 0
    f1: Numbers = (2 * matched / np.maximum(total, 1e-300) * there).sum(-1) / np.maximum(there.sum(-1), 1)
    return f1
