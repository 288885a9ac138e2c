"""Predictions of one version for labelled rows, and the metrics that follow from them.

Test-then-train windows, the gate and the holdout evaluation compute their metrics here. Rows count by their weights in
metrics that are means over rows; AUC, average precision, F1 and balanced accuracy count every row once. Losses and the
Brier score of a soft label are means over its two classes; for all other metrics, its class is the likelier one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from core.models.policy import Policy

Numbers = NDArray[np.float64]
Metric = Literal[
    "loss",
    "log_loss",
    "accuracy",
    "balanced_accuracy",
    "auc",
    "average_precision",
    "f1",
    "brier",
    "recall_at_precision",
    "rmse",
    "mae",
]
LOWER_IS_BETTER = frozenset({"loss", "log_loss", "brier", "rmse", "mae"})
"""All other metrics are better if they are higher."""
SMALLEST_PROBABILITY = float(np.finfo(np.float64).eps)
"""Smaller probabilities are clipped in the log loss, as in scikit-learn."""


@dataclass(frozen=True)
class MetricOptions:
    """What the policy says about metrics."""

    threshold: float = 0.5
    """A binary model predicts class 1 if its probability is above this."""
    precision: float | None = None
    """Precision at which `recall_at_precision` is computed; None: not at all."""

    @classmethod
    def of(cls, policy: Policy) -> MetricOptions:
        return cls(policy.threshold, policy.recall_at_precision)


@dataclass(frozen=True)
class ScoredRows:
    """What one version predicted for n rows with known targets."""

    target: str
    """Kind of the target: "binary", "classes", "labels", "number" or "count"."""
    loss: Numbers
    """(n,) loss of each row, as the model defines it."""
    score: Numbers
    """(n,) probability or score of class 1, probability of the likeliest of several classes or labels, or predicted
    number."""
    predicted: NDArray[np.int64]
    """(n,) predicted classes, or sets of labels as numbers (`label_sets`); of no meaning for numbers."""
    y: Numbers
    """(n,) targets: 0, 1 or a probability between them (a soft label), the index of the class, a set of labels as a
    number, or the number."""
    weight: Numbers
    """(n,) weights of the rows."""
    probability: Numbers | None = None
    """(n,) predicted probability of the true class, in the mean over both classes for a soft label; None for numbers
    and for losses that give no probabilities."""
    square_sum: Numbers | None = None
    """(n,) sum of the squared probabilities of all classes, for the Brier score; None like `probability`."""
    precision: float | None = None
    """Precision at which `recall_at_precision` is computed."""
    means: Numbers | None = None
    """(n, K) predicted probability of each label; None for other targets."""
    labels: tuple[str, ...] = ()
    """Names of the labels (`label_rows`)."""

    @classmethod
    def of(
        cls,
        target: str,
        loss: Numbers,
        mean: Numbers,
        y: Numbers,
        weight: Numbers,
        options: MetricOptions = MetricOptions(),
    ) -> ScoredRows:
        """From (n, K) predicted means: numbers, the probability of class 1 (K = 1), or probabilities of classes."""
        score = mean[:, 0] if mean.shape[1] == 1 else mean.max(1)
        if target not in ("binary", "classes"):
            return cls(target, loss, score, np.zeros(len(y), np.int64), y, weight)
        if target == "binary":
            predicted, probability = mean[:, 0] > options.threshold, y * mean[:, 0] + (1 - y) * (1 - mean[:, 0])
            squares = mean[:, 0] ** 2 + (1 - mean[:, 0]) ** 2
        else:
            predicted, probability = mean.argmax(1), mean[np.arange(len(y)), y.astype(np.int64)]
            squares = (mean**2).sum(1)
        return cls(target, loss, score, predicted.astype(np.int64), y, weight, probability, squares, options.precision)

    def __len__(self) -> int:
        return len(self.loss)

    def take(self, rows: NDArray[Any]) -> ScoredRows:
        """The same for a subset of the rows: indices or a mask."""
        columns = {name: getattr(self, name) for name in (*COLUMNS, MEANS)}
        taken: Any = {name: None if column is None else column[rows] for name, column in columns.items()}
        return replace(self, **taken)

    @property
    def classifies(self) -> bool:
        return self.target in ("binary", "classes", "labels")

    @cached_property
    def truth(self) -> NDArray[np.int64]:
        """(n,) true classes or sets of labels; a soft label is of the likelier class."""
        return (self.y > 0.5 if self.target == "binary" else self.y).astype(np.int64)

    @cached_property
    def computed(self) -> dict[Any, Any]:
        """Metrics and influences that were computed of these rows, since a comparison needs them as well."""
        return {}

    @cached_property
    def order(self) -> NDArray[np.int64]:
        """(n,) the rows in descending order of their scores; NaN counts as 0."""
        return np.argsort(-np.nan_to_num(self.score), kind="stable")

    @cached_property
    def below(self) -> Numbers:
        """(n,) of a binary target: for each row, the share of the other class with lower scores; equal ones count half.

        Not defined if a class has no rows.
        """
        score, positive = np.nan_to_num(self.score)[self.order][::-1], self.truth[self.order][::-1] == 1
        first = np.append(True, np.diff(score) != 0)
        step = np.cumsum(first) - 1  # rows with the same score are one step
        sums = [np.bincount(step, of_class) for of_class in (~positive, positive)]
        shares = [(np.cumsum(sizes) - sizes / 2) / max(1, sizes.sum()) for sizes in sums]
        found = np.empty(len(score))
        found[self.order[::-1]] = np.where(positive, shares[0][step], shares[1][step])
        return found

    @property
    def metrics(self) -> tuple[Metric, ...]:
        """The metrics that apply to the target."""
        if not self.classifies:
            return ("loss", "rmse", "mae")
        if self.target == "labels":
            recall: tuple[Metric, ...] = () if self.precision is None else ("recall_at_precision",)
            return ("loss", "log_loss", "brier", "accuracy", "auc", "average_precision", *recall, "f1")
        probabilistic: tuple[Metric, ...] = () if self.probability is None else ("log_loss", "brier")
        ranked: tuple[Metric, ...] = ("auc", "average_precision") if self.target == "binary" else ()
        if ranked and self.precision is not None:
            ranked = (*ranked, "recall_at_precision")
        return ("loss", *probabilistic, "accuracy", "balanced_accuracy", *ranked, "f1")

    def per_row(self, metric: Metric) -> Numbers:
        """(n,) values whose weighted mean is the metric, or its square for `rmse`."""
        values: Numbers
        match metric:
            case "loss":
                values = self.loss
            case "accuracy":
                values = (self.predicted == self.truth).astype(np.float64)
            case "rmse":
                values = (self.score - self.y) ** 2
            case "mae":
                values = np.abs(self.score - self.y)
            case "log_loss" | "brier" if self.means is not None:
                from core.quality.label_rows import mean_over_labels  # it builds on this module

                values = mean_over_labels(self, metric)
            case "log_loss" if self.probability is not None and self.target == "binary":
                values = -(self.y * clipped_log(self.score) + (1 - self.y) * clipped_log(1 - self.score))
            case "log_loss" if self.probability is not None:
                values = -clipped_log(self.probability)
            case "brier" if self.probability is not None and self.square_sum is not None:
                # sum over classes of (probability - 1 if true)^2; for two classes half of it, as usual
                values = (1 - 2 * self.probability + self.square_sum) / (2 if self.target == "binary" else 1)
            case _:
                raise ValueError(f"{metric} is not a mean over these rows")
        return values


def clipped_log(probability: Numbers) -> Numbers:
    values: Numbers = np.log(np.clip(probability, SMALLEST_PROBABILITY, 1.0))
    return values


COLUMNS = ("loss", "score", "predicted", "y", "weight", "probability", "square_sum")
"""The fields of `ScoredRows` with a value for each row."""
MEANS = "means"
"""The field with several values for each row."""


def concatenate(parts: Sequence[ScoredRows]) -> ScoredRows:
    """The rows of several chunks, of which there is at least one."""
    if len(parts) == 1:
        return parts[0]

    def join(name: str) -> NDArray[Any] | None:
        columns = [getattr(part, name) for part in parts]
        return None if columns[0] is None else np.concatenate(columns)

    joined: Any = {name: join(name) for name in (*COLUMNS, MEANS)}
    return replace(parts[0], **joined)
