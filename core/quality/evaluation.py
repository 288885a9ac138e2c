"""Evaluating a version: metrics of its predictions on the holdout, with standard errors."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import astuple
from typing import Any, Self

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.special import stdtr
from torch import Tensor

from core.kprior import Data, Examples, State
from core.kprior.data.codec import Tensors
from core.kprior.model.spec import gives_scores
from core.kprior.model.uncertainty import LEVEL
from core.kprior.passes.accumulator import Accumulator, Combined
from core.kprior.passes.partitioned import accumulate
from core.kprior.state.posterior import LatePosterior, NoPosterior
from core.quality.jackknife import Ranking
from core.quality.label_rows import LABEL_METRICS, each_label
from core.quality.scored_rows import COLUMNS, MetricOptions, Numbers, ScoredRows, concatenate
from core.quality.scoring import DEFAULTS, no_rows, predict, score_outputs, weights_of
from core.quality.standard_errors import Clusters, estimate_reported
from core.tables.documents import CurveDocument, EvaluationDocument, ReliabilityBin

BINS, LEVELS = 10, 20
MAX_CLASSES = 50
"""Largest confusion matrix: more classes are unreadable, and thousands would take hundreds of megabytes."""
CURVE_POINTS = 100
"""Maximum number of points of the ROC and precision-recall curves."""


class Evaluation(Accumulator):
    """Metrics of one version's predictions, accumulated chunk by chunk."""

    kind = "evaluation"

    def __init__(self, state: State, options: MetricOptions = DEFAULTS) -> None:
        self.state, self.options = state, options
        self.target: str = state.spec["target"]["kind"]
        self.classifies = self.target in ("binary", "classes", "labels")
        self.scores = gives_scores(state.spec)
        """Whether the model outputs scores instead of probabilities."""
        self.work = 2.0 * state.predictor.size
        self._parts: list[ScoredRows] = []
        """One for each chunk: about 20 000 rows in total."""
        self._metrics: dict[str, float] | None = None
        self.clusters: NDArray[np.int64] | None = None
        """(n,) number 0, 1, 2, ... of each row's subject, for standard errors; None: no subject has several rows."""
        self._posterior = LatePosterior(state) if self.target == "number" else None
        self._levels = np.zeros(LEVELS)
        """Weights of the numbers by the level of the smallest interval that contains them, in twentieths."""

    @property
    def count(self) -> int:
        return sum(map(len, self._parts))

    @property
    def rows(self) -> ScoredRows:
        """All rows."""
        if len(self._parts) > 1:
            self._parts = [concatenate(self._parts)]
        return self._parts[0] if self._parts else no_rows(self.state)

    def add(self, chunk: Examples) -> None:
        f, mean = predict(self.state, chunk.x)
        weight = weights_of(chunk)
        self.add_predictions(f, mean, chunk.y, weight)
        self.add_levels(chunk, f, weight)

    def add_levels(self, chunk: Examples, f: Tensor, weight: Tensor) -> None:
        """Add the levels of the smallest intervals that contain the targets, if the model has a posterior."""
        if self._posterior is None:
            return
        try:
            posterior = self._posterior()
        except NoPosterior:
            self._posterior = None
            return
        with torch.inference_mode():
            predictor = self.state.predictor
            phi = predictor.features(chunk.x) if predictor.linear else predictor.last_features(chunk.x, self.state.w)
        there = f.double().cpu().numpy()
        std = torch.from_numpy(posterior.assess(predictor.family.name, there, phi.double().cpu().numpy()).std)
        off = (chunk.y.double().cpu() - f.double().cpu()) / std
        level = np.nan_to_num(2 * stdtr(posterior.freedom, off.abs().numpy()) - 1, nan=1.0)[:, 0]
        place = (level * LEVELS).astype(int).clip(max=LEVELS - 1)
        self._levels += np.bincount(place, weight.numpy(), minlength=LEVELS)

    def add_predictions(self, f: Tensor, mean: Tensor, y: Tensor, weight: Tensor) -> ScoredRows:
        """Add the predictions for a chunk, and return them."""
        rows = score_outputs(self.state, f, mean, y, weight, self.options)
        self._parts.append(rows)
        self._metrics = None
        return rows

    def empty(self) -> Self:
        return type(self)(self.state, self.options)

    def sums(self) -> Tensors:
        columns = [column for name in COLUMNS if (column := getattr(self.rows, name)) is not None]
        rows = torch.from_numpy(np.stack([column.astype(np.float64) for column in columns], 1))
        means = {} if self.rows.means is None else {"means": torch.from_numpy(self.rows.means)}
        return {"rows": rows, "levels": torch.from_numpy(self._levels), **means}

    def merge(self, sums: Tensors) -> None:
        self._levels += sums["levels"].numpy()
        columns = list(sums["rows"].numpy().T)
        if not columns[0].size:
            return
        columns[COLUMNS.index("predicted")] = columns[COLUMNS.index("predicted")].astype(np.int64)
        rows: Any = dict(zip(COLUMNS, columns, strict=False))
        if "means" in sums:
            rows |= {"means": sums["means"].numpy(), "labels": no_rows(self.state).labels}
        self._parts.append(ScoredRows(self.target, **rows, precision=self.options.precision))
        self._metrics = None

    def to_config(self) -> tuple[dict[str, Any], Tensors]:
        precision = math.nan if self.options.precision is None else self.options.precision
        options = torch.tensor([self.options.threshold, precision], dtype=torch.float64)
        state = torch.frombuffer(bytearray(self.state.to_bytes()), dtype=torch.uint8)
        return {}, {"state": state, "options": options}

    @classmethod
    def from_config(cls, header: dict[str, Any], tensors: Tensors, device: torch.device) -> Self:
        threshold, precision = tensors["options"].tolist()
        options = MetricOptions(threshold, None if math.isnan(precision) else precision)
        return cls(State.from_bytes(tensors["state"].numpy().tobytes(), device), options)

    @property
    def heaviest(self) -> float | None:
        """The largest weight of a subject, or of a row, as a fraction of the total; None if all weights are equal."""
        weight = self.rows.weight
        if self.clusters is not None:
            return float(np.bincount(self.clusters, weight).max() / weight.sum())
        fraction = float(weight.max() / weight.sum()) if len(weight) else 0.0
        return fraction if fraction * len(weight) > 1 + 1e-9 else None

    @property
    def metrics(self) -> dict[str, float]:
        """All metrics that apply to the target.

        `loss` is the loss of the model: log loss for classes, half the squared error for numbers, half the deviance for
        counts, the squared hinge, or Huber's loss; it is 0 for a model that is certain and correct. For classes:
        `accuracy`, `balanced_accuracy` (the mean recall of the classes that occur), `f1` (of the second of two classes,
        or the mean over all classes) and, unless the model outputs scores, `log_loss`, `brier` (the sum over classes of
        the squared error, half of it for two classes) and `calibration` (the expected calibration error). For binary
        targets: `auc`, `average_precision` and, if the policy names a precision, `recall_at_precision`. For numbers:
        `rmse`, `mae`, `r2`, and `coverage`, the fraction within their 95 % intervals. Names with the prefix `baseline_`
        are the metrics of the best constant prediction on the same rows (the most frequent class, or the mean; the
        share of class 1 for average precision), and those with the suffix `_se` are standard errors, clustered by
        subject. Rows are weighted as with scikit-learn's `sample_weight`, except for auc, average_precision,
        recall_at_precision, f1 and balanced_accuracy; class weights are not used. For a target of several labels, see
        `label_rows`; names such as `sports/auc` are metrics of one label. A soft label is a mean over both classes in
        `loss`, `log_loss`, `brier` and `calibration`, and counts as the likelier class in all other metrics. `rows` is
        the number of rows, and `heaviest` the largest weight of a subject, or of a row, as a fraction of the total, if
        weights differ.
        """
        if self._metrics is None:
            with np.errstate(all="ignore"):  # predictions that are not finite
                found = self._compute() if self.count else {}
            self._metrics = {name: value for name, value in found.items() if math.isfinite(value)}
        return dict(self._metrics)

    def _compute(self) -> dict[str, float]:
        rows, clusters = self.rows, self.clusters
        found: dict[str, float] = {"rows": len(rows)}
        if (heaviest := self.heaviest) is not None:
            found["heaviest"] = heaviest
        for metric in rows.metrics:
            value, error = astuple(estimate_reported(rows, metric, clusters))
            found |= {metric: value, f"{metric}_se": error if len(rows) > 1 else math.nan}
        if not self.classifies:
            found |= explained_variance(rows.score, rows.y, rows.weight, clusters)
            if self._levels.any():
                found["coverage"] = float(self._covered()[round(LEVEL * LEVELS) - 1])
            return found
        if not self.scores:
            confidence, right, weight, _ = self._bins().T
            found["calibration"] = float(np.abs(confidence - right).sum() / weight.sum())
        place = np.unique(rows.truth, return_inverse=True)[1]
        found["baseline_accuracy"] = float(np.bincount(place, rows.weight).max() / rows.weight.sum())
        if self.target == "labels":
            found |= describe_labels(rows, clusters)
        if self.target == "binary" and rows.truth.any():
            found["baseline_average_precision"] = float(rows.truth.mean())
        return found

    def _bins(self) -> NDArray[np.float64]:
        """(BINS, 4) weighted sums of confidences, of correct predictions and of all predictions; number of rows.

        Two classes: how often it is the second, by soft labels if there are any; more classes: how often the most
        likely one is correct.
        """
        rows = self.rows
        if rows.means is not None:
            rows = join_labels(rows)
        confidence = np.nan_to_num(rows.score)  # an input so extreme that the prediction is NaN
        right = rows.y if rows.target == "binary" else rows.truth == rows.predicted
        # a ridge classifier predicts means below 0 and above 1: they count in the first and the last bin
        place = np.clip(confidence * BINS, 0, BINS - 1).astype(int)
        sums = (confidence * rows.weight, right * rows.weight, rows.weight, None)
        return np.stack([np.bincount(place, column, minlength=BINS) for column in sums], 1)

    def _covered(self) -> NDArray[Any]:
        """The fraction of numbers within the intervals of each level, narrowest first."""
        shares: NDArray[Any] = np.cumsum(self._levels) / self._levels.sum()
        return shares

    def chart_data(self) -> EvaluationDocument:
        """Data for charts: the confusion matrix, reliability by confidence, and points of the ROC and precision-recall
        curves; for numbers, coverage by the level of an interval.
        """
        if not self.classifies and self._levels.any():
            levels = np.arange(1, LEVELS) / LEVELS
            shares = zip(levels.tolist(), self._covered().tolist(), strict=False)
            return {"coverage": [{"confidence": u, "accuracy": c, "count": self.count} for u, c in shares]}
        if not self.classifies or self.count == 0:
            return {}
        drawn: EvaluationDocument = {"confusion": self._confusion()}
        if not self.scores:
            bins: list[ReliabilityBin] = [
                {"confidence": c / v, "accuracy": r / v, "count": int(n)} for c, r, v, n in self._bins().tolist() if v
            ]
            drawn["reliability"] = bins
        if self.target == "labels":
            drawn["threshold"] = self.options.threshold
        if self.target == "binary":
            drawn["threshold"] = 0.0 if self.scores else self.options.threshold
            if curve := draw_curve(self.rows):
                drawn["curve"] = curve
        return drawn

    def _confusion(self) -> list[list[int]] | None:
        """Numbers of rows by true and predicted class."""
        size = max(2, self.state.predictor.family.outputs)
        if size > MAX_CLASSES or self.target == "labels":
            return None
        pairs = self.rows.truth * size + self.rows.predicted
        counts: list[list[int]] = np.bincount(pairs, minlength=size**2).reshape(size, size).tolist()
        return counts


def join_labels(rows: ScoredRows) -> ScoredRows:
    """The rows of all labels, one after the other, as those of a binary target."""
    return concatenate(each_label(rows))


def describe_labels(rows: ScoredRows, clusters: Clusters | None) -> dict[str, float]:
    """Metrics of each label, named after it, and the metrics of the best constant prediction."""
    found: dict[str, float] = {}
    shares = []
    for name, one in zip(rows.labels, each_label(rows), strict=True):
        for metric in LABEL_METRICS:
            estimated = estimate_reported(one, metric, clusters)
            error = estimated.se if len(rows) > 1 else math.nan
            found |= {f"{name}/{metric}": estimated.value, f"{name}/{metric}_se": error}
        found[f"{name}/baseline_average_precision"] = share = float(one.truth.mean())
        shares += [share] if share else []
    if shares:
        found["baseline_average_precision"] = float(np.mean(shares))
    return found


def draw_curve(rows: ScoredRows) -> CurveDocument | None:
    """Points of the ROC and precision-recall curves, evenly spaced along the former; None for a single class."""
    ranking = Ranking.of(rows)
    positives, negatives = ranking.positives, len(rows) - ranking.positives
    if not positives or not negatives:
        return None
    false_positives, recall = (ranking.chosen - ranking.hits) / negatives, ranking.hits / positives
    along = np.searchsorted(false_positives + recall, np.linspace(0, 2, CURVE_POINTS) - 1e-9)
    kept = np.unique(along.clip(max=len(recall) - 1))

    def short(values: Numbers) -> list[float]:
        return [float(f"{value:.4g}") for value in values[kept].tolist()]

    return {
        "threshold": short(ranking.threshold),
        "false_positive_rate": short(false_positives),
        "recall": short(recall),
        "precision": short(ranking.precision),
    }


def explained_variance(
    predicted: Numbers, y: Numbers, weight: Numbers, clusters: NDArray[np.int64] | None = None
) -> dict[str, float]:
    """R2, and the RMSE of predicting the mean with its standard error. Rows are weighted."""
    normalized = weight / weight.sum()
    squares = (y - normalized @ y) ** 2
    mean = float(normalized @ squares)
    root = math.sqrt(mean)
    metrics = {"baseline_rmse": root, "baseline_rmse_se": 0.0}
    if root:
        deviations = normalized * (squares - mean)
        sums = deviations if clusters is None else np.bincount(clusters, deviations)
        metrics["baseline_rmse_se"] = math.sqrt(float(sums @ sums)) / (2 * root)
        metrics["r2"] = 1 - float(normalized @ (predicted - y) ** 2) / mean
    return metrics


def evaluate(states: Sequence[State], holdout: Data, options: MetricOptions = DEFAULTS) -> list[Evaluation]:
    """Evaluate several versions in one pass."""
    evaluations = [Evaluation(state, options) for state in states]
    accumulate(holdout, Combined(*evaluations))
    return evaluations
