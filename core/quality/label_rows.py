"""Scored rows of targets of several labels: each label is a binary target of its own, on the same rows.

AUC, average precision, F1 and the recall at a precision are means over labels (macro averages), as are the log loss and
the Brier score. A row counts as accurate if all of its labels are, as in scikit-learn.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from core.kprior.data.label_sets import recode_labels, to_codes, to_matrix
from core.quality.scored_rows import Metric, MetricOptions, Numbers, ScoredRows, clipped_log

MACRO_AVERAGES: tuple[Metric, ...] = ("auc", "average_precision", "f1", "recall_at_precision")
"""Metrics that are means over labels, without being means over rows."""
LABEL_METRICS: tuple[Metric, ...] = ("average_precision", "log_loss", "auc", "f1")
"""Metrics that are also reported for each label."""


def score_labels(
    names: Sequence[str], loss: Numbers, mean: Numbers, y: Numbers, weight: Numbers, options: MetricOptions
) -> ScoredRows:
    """The rows of probabilities and targets (n, K) of labels with these names."""
    likeliest = mean.max(1) if mean.shape[1] else np.zeros(len(mean))
    predicted, truth = to_codes(mean > options.threshold).astype(np.int64), to_codes(y)
    return ScoredRows(
        "labels",
        loss,
        likeliest,
        predicted,
        truth,
        weight,
        precision=options.precision,
        means=mean,
        labels=tuple(names),
    )


def of_label(rows: ScoredRows, k: int) -> ScoredRows:
    """The rows as those of one label: a binary target."""
    assert rows.means is not None
    mean, y = rows.means[:, k], to_matrix(rows.y, len(rows.labels))[:, k]
    predicted = to_matrix(rows.predicted.astype(np.float64), len(rows.labels))[:, k].astype(np.int64)
    one = ScoredRows("binary", np.zeros(len(rows)), mean, predicted, y, rows.weight, np.where(y == 1, mean, 1 - mean))
    one = replace(one, square_sum=mean**2 + (1 - mean) ** 2, precision=rows.precision)
    return replace(one, loss=one.per_row("log_loss"))


def each_label(rows: ScoredRows) -> list[ScoredRows]:
    """The rows of each label, in order."""
    return [of_label(rows, k) for k in range(len(rows.labels))]


def mean_over_labels(rows: ScoredRows, metric: Metric) -> Numbers:
    """(n,) the mean of a row's log losses or Brier scores over all labels."""
    assert rows.means is not None
    y = to_matrix(rows.y, len(rows.labels))
    if metric == "brier":
        values: Numbers = ((rows.means - y) ** 2).mean(1)
    else:
        values = -(y * clipped_log(rows.means) + (1 - y) * clipped_log(1 - rows.means)).mean(1)
    return values


def shared_labels(versions: Sequence[ScoredRows]) -> list[str]:
    """The labels that all versions have, in the order of the last one."""
    common = set.intersection(*(set(rows.labels) for rows in versions))
    return [name for name in versions[-1].labels if name in common]


def restrict(rows: ScoredRows, names: Sequence[str]) -> ScoredRows:
    """The rows for some of their labels. Their loss is the sum of the log losses of these labels."""
    if tuple(names) == rows.labels:
        return rows
    assert rows.means is not None
    places = [float(names.index(name)) if name in names else np.nan for name in rows.labels]
    mean = rows.means[:, [rows.labels.index(name) for name in names]]
    made = replace(
        rows,
        means=mean,
        labels=tuple(names),
        y=recode_labels(places, rows.y),
        predicted=recode_labels(places, rows.predicted.astype(np.float64)).astype(np.int64),
        score=mean.max(1) if names else np.zeros(len(rows)),
    )
    return replace(made, loss=mean_over_labels(made, "log_loss") * len(names) if names else np.zeros(len(rows)))
