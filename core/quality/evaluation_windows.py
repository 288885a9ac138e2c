"""Test-then-train evaluation: predictions for new examples, made before the model learns them, in windows of time.

A job scores each example once, with the champion and with the frozen version, which shows how the model would do
without any updates. It stores one window per hour (per day or week, if it brings examples of many hours), with the
predictions row by row, so that the metrics of a day or a week can be computed exactly.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator, Sequence
from dataclasses import astuple, dataclass, field, replace
from datetime import UTC, datetime, timedelta
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray
from safetensors.numpy import load, save

from core.kprior.data.label_sets import to_matrix
from core.quality.label_rows import restrict, score_labels, shared_labels
from core.quality.scored_rows import Metric, MetricOptions, Numbers, ScoredRows
from core.quality.standard_errors import estimate, estimate_reported, value_of

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
COLUMNS = ("loss", "score", "predicted", "probability", "square_sum", "means")
"""Columns of scored rows that differ between versions."""
Integers = NDArray[np.int64]


@dataclass(frozen=True)
class Scores:
    """Predictions of several contestants for the same n rows."""

    target: str
    position: Integers
    """(n,) ledger positions."""
    y: Numbers
    weight: Numbers
    cluster: Integers
    """(n,) number of each row's subject; rows without a subject have numbers of their own."""
    contestants: dict[str, ScoredRows]
    """"champion", "frozen" or "challenger": what it predicted."""
    segments: dict[str, NDArray[np.str_]] = field(default_factory=dict)
    """By column of the policy's segments: (n,) names of the rows' values."""

    def __len__(self) -> int:
        return len(self.position)

    @property
    def labels(self) -> tuple[str, ...]:
        """Names of the labels of a target that has several."""
        return next((scored.labels for scored in self.contestants.values()), ())

    def take(self, rows: NDArray[np.bool_]) -> Scores:
        """The same for a subset of the rows."""
        contestants = {name: scored.take(rows) for name, scored in self.contestants.items()}
        columns = (self.position[rows], self.y[rows], self.weight[rows], self.cluster[rows])
        segments = {column: values[rows] for column, values in self.segments.items()}
        return Scores(self.target, *columns, contestants, segments)

    def without(self, positions: Collection[int]) -> Scores:
        """The same without the rows at some positions."""
        return self.take(~np.isin(self.position, list(positions)))

    def largest_share(self) -> float:
        """The largest share of one subject in the weight of all rows."""
        if not len(self):
            return 1.0
        weights = np.bincount(np.unique(self.cluster, return_inverse=True)[1], self.weight)
        return float(weights.max() / weights.sum())

    def to_bytes(self) -> bytes:
        """As stored with a window."""
        arrays = {"position": self.position, "y": self.y, "weight": self.weight, "cluster": self.cluster}
        for name, scored in self.contestants.items():
            columns = {f"{name}.{column}": getattr(scored, column) for column in COLUMNS}
            arrays |= {key: column for key, column in columns.items() if column is not None}
        names = {}
        for i, (column, values) in enumerate(self.segments.items()):
            found, arrays[f"segment{i}"] = np.unique(values, return_inverse=True)
            names[column] = found.tolist()
        # a single entry: safetensors writes several in a random order, and the same scores should be the same bytes
        described: dict[str, Any] = {"target": self.target, "segments": names}
        if self.labels:
            described["labels"] = self.labels
        header = {"scores": json.dumps(described)}
        return save({key: np.ascontiguousarray(array) for key, array in arrays.items()}, header)

    @classmethod
    def from_bytes(cls, data: bytes) -> Scores:
        arrays, header = load(data), read_header(data)
        target, names = header["target"], header["segments"]
        segments = {column: np.array(values)[arrays[f"segment{i}"]] for i, (column, values) in enumerate(names.items())}
        shared = (arrays["position"], arrays["y"], arrays["weight"], arrays["cluster"])
        contestants = {}
        for name in sorted({key.partition(".")[0] for key in arrays if "." in key}):
            columns = {column: arrays.get(f"{name}.{column}") for column in COLUMNS}
            labels = tuple(header.get("labels", ()))
            shared_columns = {"target": target, "y": arrays["y"], "weight": arrays["weight"], "labels": labels}
            contestants[name] = ScoredRows(**shared_columns, **columns)  # type: ignore[arg-type]
        return cls(target, *shared, contestants, segments)

    def metrics_of(self, contestant: str) -> dict[str, float]:
        """Metrics of a contestant, with standard errors clustered by subject."""
        return describe(self.contestants[contestant], np.unique(self.cluster, return_inverse=True)[1])

    def metrics(self) -> dict[str, dict[str, float]]:
        """Metrics of each contestant and of the baseline."""
        found = {name: self.metrics_of(name) for name in self.contestants}
        found["baseline"] = describe_baseline(self)
        return found


def read_header(data: bytes) -> dict[str, Any]:
    """The description in a safetensors file, whose library reads metadata from files only."""
    size = int.from_bytes(data[:8], "little")
    header: dict[str, Any] = json.loads(json.loads(data[8 : 8 + size])["__metadata__"]["scores"])
    return header


def describe(scored: ScoredRows, clusters: Integers | None) -> dict[str, float]:
    """All metrics of some rows, with standard errors (`_se`).

    Rounded metrics hide a subject only if the error is at least the change that the subject makes: this is why metrics
    that are not means over rows have the error of leaving rows out, which is also cheaper than a bootstrap.
    """
    found: dict[str, float] = {}
    for metric in scored.metrics:
        value, error = astuple(estimate_reported(scored, metric, clusters))
        found |= {metric: value, f"{metric}_se": error}
    return keep_finite(found)


def keep_finite(metrics: dict[str, float]) -> dict[str, float]:
    """Without metrics that are undefined, such as the error of a metric of a single subject."""
    return {name: value for name, value in metrics.items() if np.isfinite(value)}


def describe_baseline(scores: Scores) -> dict[str, float]:
    """Metrics of the best constant prediction for the same rows: the class frequencies, or the mean."""
    if not len(scores):
        return {}
    share = scores.weight / scores.weight.sum()
    if scores.target == "labels":
        return describe_label_baseline(scores, share)
    if scores.target not in ("binary", "classes"):
        mean = np.full(len(scores), share @ scores.y)
        constant = ScoredRows(scores.target, mean, mean, np.zeros(len(mean), np.int64), scores.y, scores.weight)
        metrics: tuple[Metric, ...] = ("rmse", "mae")
    else:
        truth = (scores.y > 0.5 if scores.target == "binary" else scores.y).astype(np.int64)
        labels, place = np.unique(truth, return_inverse=True)
        frequency: Numbers = np.bincount(place, share).astype(np.float64)
        common = np.full(len(scores), labels[frequency.argmax()])
        probability, squares = frequency[place], np.full(len(scores), (frequency**2).sum())
        positive = np.full(len(scores), share @ scores.y)
        if scores.target == "binary":
            probability = scores.y * positive + (1 - scores.y) * (1 - positive)
            squares = positive**2 + (1 - positive) ** 2
        constant = ScoredRows(scores.target, positive, positive, common, scores.y, scores.weight, probability, squares)
        metrics = ("log_loss", "brier", "accuracy")
    clusters = np.unique(scores.cluster, return_inverse=True)[1]
    found: dict[str, float] = {}
    for metric in metrics:
        result = estimate(constant, metric, clusters)
        found |= {metric: result.value, f"{metric}_se": result.se}
    return keep_finite(found)


def describe_label_baseline(scores: Scores, share: Numbers) -> dict[str, float]:
    """Metrics of predicting the frequency of each label, and the most frequent set of labels."""
    y = to_matrix(scores.y, len(scores.labels))
    mean = np.tile(share @ y, (len(y), 1))
    constant = score_labels(scores.labels, np.zeros(len(y)), mean, y, scores.weight, MetricOptions())
    sets, place = np.unique(scores.y, return_inverse=True)
    common = np.full(len(y), int(sets[np.bincount(place, share).argmax()]))
    constant = replace(constant, predicted=common)
    metrics: tuple[Metric, ...] = ("log_loss", "brier", "accuracy")
    return {metric: value_of(constant, metric) for metric in metrics}


def with_labels(scores: Scores, names: Sequence[str]) -> Scores:
    """The rows for some of their labels."""
    contestants = {name: restrict(scored, names) for name, scored in scores.contestants.items()}
    y = next(iter(contestants.values())).y
    return replace(scores, y=y, contestants=contestants)


def merge(parts: Sequence[Scores]) -> Scores:
    """The rows of several windows; only contestants that scored all of them, and segments and labels that all of them
    have."""
    if len({part.labels for part in parts}) > 1:
        names = shared_labels([next(iter(part.contestants.values())) for part in parts])
        parts = [with_labels(part, names) for part in parts]
    shared = set.intersection(*[set(part.contestants) for part in parts])

    def join(name: str) -> Numbers:
        columns: Numbers = np.concatenate([getattr(part, name) for part in parts])
        return columns

    y, weight = join("y"), join("weight")
    contestants = {}
    for name in sorted(shared):
        columns = {
            column: None
            if any(getattr(part.contestants[name], column) is None for part in parts)
            else np.concatenate([getattr(part.contestants[name], column) for part in parts])
            for column in COLUMNS
        }
        first = {"target": parts[0].target, "y": y, "weight": weight, "labels": parts[0].labels}
        contestants[name] = ScoredRows(**first, **columns)  # type: ignore[arg-type]
    position, cluster = cast(Integers, join("position")), cast(Integers, join("cluster"))
    split = set.intersection(*[set(part.segments) for part in parts])
    segments = {name: np.concatenate([part.segments[name] for part in parts]) for name in sorted(split)}
    return Scores(parts[0].target, position, y, weight, cluster, contestants, segments)


MAX_HOURS = 200
"""Number of different hours of a job's examples up to which each hour is a window: somewhat more than a week."""
HOURS_OF_DAY = 24
DAYS_OF_WEEK = 7
MONDAY = 3
"""Days from a Monday to the first day of the epoch, a Thursday."""


def split_by_time(scores: Scores, times: NDArray[np.datetime64]) -> Iterator[tuple[datetime, Scores]]:
    """The rows of each hour, in order of time.

    If there are many hours, as in a load of several months, the rows of each day, or of each week: metrics of thousands
    of windows would take longer than the rest of the job.
    """
    starts = times.astype("M8[h]").astype(np.int64)
    if len(np.unique(starts)) > MAX_HOURS:
        days = starts // HOURS_OF_DAY
        if len(np.unique(days)) > MAX_HOURS:
            days -= (days + MONDAY) % DAYS_OF_WEEK
        starts = days * HOURS_OF_DAY
    for hour in np.unique(starts):
        yield EPOCH + timedelta(hours=int(hour)), scores.take(starts == hour)


def start_of(moment: datetime, window: str) -> datetime:
    """The beginning of the hour, day or week (from Monday) that a time belongs to.

    >>> start_of(datetime(2026, 3, 5, 14, 30, tzinfo=UTC), "week")
    datetime.datetime(2026, 3, 2, 0, 0, tzinfo=datetime.timezone.utc)
    """
    hour = moment.astimezone(UTC).replace(minute=0, second=0, microsecond=0)
    if window == "hour":
        return hour
    day = hour.replace(hour=0)
    return day if window == "day" else day - timedelta(days=day.weekday())


LENGTHS = {"hour": timedelta(hours=1), "day": timedelta(days=1), "week": timedelta(days=7)}
