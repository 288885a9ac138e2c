"""Figures that need more than a mean over rows: AUC, F1, R2, and what a constant answer would get.

Each comes with a standard error, and none moves by much more than that when a row goes, whichever it is: what
`core.versions.privacy_rounding` hides by a grid of two of them.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

Numbers = NDArray[np.float64]
Counts = NDArray[np.int64] | NDArray[np.float64]


def area_under_curve(score: Numbers, truth: NDArray[np.bool_]) -> dict[str, float]:
    """The area under the ROC curve, and its standard error (DeLong, DeLong & Clarke-Pearson 1988).

    How often a row of the second class scores higher than one of the first, ties counted as half. Nothing, if either
    class has no row.
    """
    above, below = np.sort(score[truth]), np.sort(score[~truth])
    if not len(above) or not len(below):
        return {}
    wins = fraction_below(below, above)
    losses = fraction_below(above, below)
    error = math.sqrt(wins.var() / len(wins) + losses.var() / len(losses))
    return {"auc": float(wins.mean()), "auc_se": error}


def fraction_below(values: Numbers, limits: Numbers) -> Numbers:
    """For each limit, the share of sorted values below it, those that are equal counted as half."""
    found: Numbers = (np.searchsorted(values, limits, "left") + np.searchsorted(values, limits, "right")) / 2
    return found / len(values)


def f1_score(matched: Counts, predicted: Counts, actual: Counts, confusion: Counts | None = None) -> dict[str, float]:
    """F1, the mean over the classes that rows have or are predicted to have, and its standard error.

    Of a class with F1 = 2 m / D, D being how many are predicted as such plus how many are, a matched row is worth
    2 (1 - F1) / D, and any other that counts for the class F1 / D. A row that is taken for another class counts for
    two: which, the confusion tells; without one the sum of squares is doubled.
    """
    there = (total := predicted + actual) > 0
    if not there.any():
        return {}
    m, total = matched[there], total[there]
    f1 = 2 * m / total
    few = total <= 2  # without such a row there may be no such class, and F1 is a mean of others
    hit = np.where(few, 1.0, 2 * (1 - f1) / np.maximum(total - 2, 1))
    missed = np.where(few, 1.0, f1 / np.maximum(total - 1, 1))
    if confusion is None:
        others = (2 if len(m) > 1 else 1) * ((total - 2 * m) * missed**2).sum()
    else:
        mistaken = confusion[np.ix_(there, there)] * (1 - np.eye(len(m)))
        others = (mistaken * np.add.outer(missed, missed) ** 2).sum()
    squares = (m * hit**2).sum() + others
    return {"f1": float(f1.mean()), "f1_se": math.sqrt(squares) / max(1, len(m) - bool(few.any()))}


def explained_variance(predicted: Numbers, y: Numbers, weight: Numbers) -> dict[str, float]:
    """R2, and the error of whoever always says the mean, with its standard error; rows count by their weights."""
    normalized = weight / weight.sum()
    squares = (y - normalized @ y) ** 2
    mean = float(normalized @ squares)
    root = math.sqrt(mean)
    found = {"baseline_rmse": root, "baseline_rmse_se": 0.0}
    if root:
        found["baseline_rmse_se"] = math.sqrt(float(normalized**2 @ (squares - mean) ** 2)) / (2 * root)
        found["r2"] = 1 - float(normalized @ (predicted - y) ** 2) / mean
    return found
