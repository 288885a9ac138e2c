"""Standard errors of metrics that are not means over rows, from the change of the metric when one row is left out.

The standard error is the root of the sum of the squared changes (the jackknife's, to first order). No single row
changes the metric by more than this, so that the grid of two standard errors in `core.versions.privacy_rounding` hides
the row. Interchangeable rows are counted, not enumerated: the cost is that of sorting the rows.
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
        score = np.nan_to_num(rows.score)
        order = np.argsort(-score, kind="stable")
        score, positive = score[order], rows.y[order] == 1
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


def leave_one_out_error(rows: ScoredRows, metric: Metric, value: float) -> float:
    """The standard error of a metric whose value is known."""
    match metric:
        case "average_precision":
            changed, count = leave_out_of_average_precision(Ranking.of(rows))
        case "recall_at_precision":
            changed, count = leave_out_of_recall(Ranking.of(rows), rows.precision or 0.0)
        case "balanced_accuracy":
            changed, count = leave_out_of_balanced_accuracy(rows)
        case _:
            changed, count = leave_out_of_f1(rows)
    return math.sqrt(float(count @ (changed - value) ** 2))


def rows_by_step(ranking: Ranking) -> tuple[Numbers, Numbers]:
    """(G,) numbers of rows of class 1, and of other rows, in each step."""
    hits, chosen = np.diff(ranking.hits, prepend=0.0), np.diff(ranking.chosen, prepend=0.0)
    return hits, chosen - hits


def leave_out_of_average_precision(ranking: Ranking) -> tuple[Numbers, Numbers]:
    """(2 G,) average precision without a row of each step and class, and the number of such rows."""
    gained, others = rows_by_step(ranking)
    hits, fewer, positives = ranking.hits, np.maximum(ranking.chosen - 1, 1.0), ranking.positives
    above = np.cumsum(gained * ranking.precision) - gained * ranking.precision
    without_other = (above + sum_from(gained * hits / fewer)) / positives
    after = gained * (hits - 1) / fewer
    own = (gained - 1) * (hits - 1) / fewer
    # without the only row of class 1 the metric is undefined, and counts as 0
    without_hit = (above + own + sum_from(after) - after) / max(positives - 1, 1.0) * (positives > 1)
    return np.concatenate([without_hit, without_other]), np.concatenate([gained, others])


def sum_from(values: Numbers) -> Numbers:
    """(G,) the sum of each value and all later values."""
    sums: Numbers = np.cumsum(values[::-1])[::-1]
    return sums


def leave_out_of_recall(ranking: Ranking, precision: float) -> tuple[Numbers, Numbers]:
    """(2 G,) the recall at a precision without a row of each step and class, and the number of such rows."""
    gained, others = rows_by_step(ranking)
    fewer, positives, steps = np.maximum(ranking.chosen - 1, 1.0), ranking.positives, np.arange(len(gained))
    before = last_step(ranking.precision >= precision)
    # the last step that reaches the precision, among the steps from which the row is missing, or else above them
    parts = []
    for hits, total in ((ranking.hits - 1, max(positives - 1, 1.0)), (ranking.hits, positives)):
        feasible = np.flatnonzero((hits / fewer >= precision) & (hits > 0))
        last = feasible[-1] if len(feasible) else -1
        earlier = np.append(-1, before[:-1])
        reached = np.where(last >= steps, hits[last], np.where(earlier >= 0, ranking.hits[earlier], 0.0))
        parts.append(reached / total)
    return np.concatenate(parts), np.concatenate([gained, others])


def last_step(mask: NDArray[np.bool_]) -> NDArray[np.int64]:
    """(G,) the last step at or before each step where the mask is true; -1 if there is none."""
    steps: NDArray[np.int64] = np.maximum.accumulate(np.where(mask, np.arange(len(mask)), -1))
    return steps


def leave_out_of_balanced_accuracy(rows: ScoredRows) -> tuple[Numbers, Numbers]:
    """(2 C,) balanced accuracy without a correct or an incorrect row of each class, and the number of such rows."""
    n = np.bincount(rows.truth).astype(float)
    h = np.bincount(rows.truth, rows.predicted == rows.truth)
    n, h = n[n > 0], h[n > 0]
    recall, classes = h / n, len(n)
    alone, fewer = n == 1, np.maximum(n - 1, 1)
    vanished = (recall.sum() - recall) / max(classes - 1, 1)
    without_hit = np.where(alone, vanished, (recall.sum() - recall + (h - 1) / fewer) / classes)
    without_miss = np.where(alone, vanished, (recall.sum() - recall + h / fewer) / classes)
    return np.concatenate([without_hit, without_miss]), np.concatenate([h, n - h])


def leave_out_of_f1(rows: ScoredRows) -> tuple[Numbers, Numbers]:
    """(pairs,) F1 without a row of each pair of true and predicted class, and the number of such rows."""
    classes = int(max(rows.truth.max(), rows.predicted.max())) + 1
    pairs, count = np.unique(rows.truth * classes + rows.predicted, return_counts=True)
    truth, guess = np.divmod(pairs, classes)
    counts = class_counts(rows)
    if rows.target == "binary":  # F1 of class 1 alone
        return f1_of(counts.without(truth, guess)[:, :, 1:2]), count.astype(float)
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
    return changed / np.maximum(there, 1), count.astype(float)


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
