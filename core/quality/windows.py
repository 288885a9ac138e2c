"""Test-then-train evaluation: predictions for new examples, made before the model learns them, in windows of time.

A job scores each example once, with the champion and with the frozen version, which shows how the model would do
without any updates. It stores one window per hour, with the predictions row by row, so that the metrics of a day or a
week can be computed exactly.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import cast

import numpy as np
from numpy.typing import NDArray
from safetensors.numpy import load, save

from core.quality.estimates import BOOTSTRAPPED, estimate, value_of
from core.quality.scored_rows import Metric, Numbers, ScoredRows

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
COLUMNS = ("loss", "score", "predicted", "probability", "square_sum")
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

    def __len__(self) -> int:
        return len(self.position)

    def take(self, rows: NDArray[np.bool_]) -> Scores:
        """The same for a subset of the rows."""
        contestants = {name: scored.take(rows) for name, scored in self.contestants.items()}
        columns = (self.position[rows], self.y[rows], self.weight[rows], self.cluster[rows])
        return Scores(self.target, *columns, contestants)

    def to_bytes(self) -> bytes:
        """As stored with a window."""
        arrays = {"position": self.position, "y": self.y, "weight": self.weight, "cluster": self.cluster}
        for name, scored in self.contestants.items():
            columns = {f"{name}.{column}": getattr(scored, column) for column in COLUMNS}
            arrays |= {key: column for key, column in columns.items() if column is not None}
        return save({key: np.ascontiguousarray(array) for key, array in arrays.items()}, {"target": self.target})

    @classmethod
    def from_bytes(cls, data: bytes, target: str) -> Scores:
        arrays = load(data)
        shared = (arrays["position"], arrays["y"], arrays["weight"], arrays["cluster"])
        contestants = {}
        for name in sorted({key.partition(".")[0] for key in arrays if "." in key}):
            columns = {column: arrays.get(f"{name}.{column}") for column in COLUMNS}
            contestants[name] = ScoredRows(target=target, y=arrays["y"], weight=arrays["weight"], **columns)  # type: ignore[arg-type]
        return cls(target, *shared, contestants)

    def metrics(self) -> dict[str, dict[str, float]]:
        """Metrics of each contestant and of the baseline, with standard errors clustered by subject."""
        clusters = np.unique(self.cluster, return_inverse=True)[1]
        found = {name: describe(scored, clusters) for name, scored in self.contestants.items()}
        found["baseline"] = describe_baseline(self)
        return found


def describe(scored: ScoredRows, clusters: Integers | None) -> dict[str, float]:
    """All metrics of some rows; standard errors (`_se`) except for metrics that need a bootstrap."""
    found: dict[str, float] = {}
    for metric in scored.metrics:
        if metric in BOOTSTRAPPED:
            found[metric] = value_of(scored, metric)
        else:
            result = estimate(scored, metric, clusters)
            found |= {metric: result.value, f"{metric}_se": result.se}
    return {name: value for name, value in found.items() if np.isfinite(value)}


def describe_baseline(scores: Scores) -> dict[str, float]:
    """Metrics of the best constant prediction for the same rows: the class frequencies, or the mean."""
    if not len(scores):
        return {}
    share = scores.weight / scores.weight.sum()
    if scores.target not in ("binary", "classes"):
        mean = np.full(len(scores), share @ scores.y)
        constant = ScoredRows(scores.target, mean, mean, np.zeros(len(mean), np.int64), scores.y, scores.weight)
        metrics: tuple[Metric, ...] = ("rmse", "mae")
    else:
        labels, place = np.unique(scores.y.astype(np.int64), return_inverse=True)
        frequency: Numbers = np.bincount(place, share).astype(np.float64)
        common = np.full(len(scores), labels[frequency.argmax()])
        positive = np.full(len(scores), share @ (scores.y == 1))
        squares = np.full(len(scores), (frequency**2).sum())
        constant = ScoredRows(
            scores.target, positive, positive, common, scores.y, scores.weight, frequency[place], squares
        )
        metrics = ("log_loss", "brier", "accuracy")
    return {metric: value_of(constant, metric) for metric in metrics}


def merge(parts: Sequence[Scores]) -> Scores:
    """The rows of several windows; only contestants that scored all of them."""
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
        contestants[name] = ScoredRows(target=parts[0].target, y=y, weight=weight, **columns)  # type: ignore[arg-type]
    position, cluster = cast(Integers, join("position")), cast(Integers, join("cluster"))
    return Scores(parts[0].target, position, y, weight, cluster, contestants)


def split_by_hour(scores: Scores, times: NDArray[np.datetime64]) -> Iterator[tuple[datetime, Scores]]:
    """The rows of each hour, in order of time."""
    hours = times.astype("M8[h]").astype(np.int64)
    for hour in np.unique(hours):
        yield EPOCH + timedelta(hours=int(hour)), scores.take(hours == hour)


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
