"""Merging stored windows into days and weeks."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import numpy as np
import pytest

from core.quality.report import average, compare_with_frozen, group
from core.quality.scored_rows import ScoredRows
from core.quality.windows import Scores, merge, split_by_hour
from core.tables.quality import QualityWindow

MONDAY = datetime(2026, 3, 2, tzinfo=UTC)


def scores(seed: int, n: int, shift: float = 0.0) -> Scores:
    rng = np.random.default_rng(seed)
    y = (rng.random(n) < 0.4).astype(float)
    weight, contestants = rng.uniform(0.5, 2, n), {}
    for name, strength in (("champion", 1.5 + shift), ("frozen", 1.0)):
        p = 1 / (1 + np.exp(-strength * (2 * y - 1) - rng.normal(size=n)))
        contestants[name] = ScoredRows.of("binary", -np.log(np.where(y == 1, p, 1 - p)), p[:, None], y, weight)
    position = np.arange(n) + 1000 * seed + 1
    return Scores("binary", position, y, weight, rng.integers(0, n // 3, n), contestants)


def window(found: Scores, start: datetime, job: str = "j") -> QualityWindow:
    return QualityWindow(
        job_id=job, start=start, rows=len(found), champion=2, frozen=1, metrics=found.metrics(),
        scores=found.to_bytes(), alarm=False, rounded=False,
        first_position=int(found.position.min()), last_position=int(found.position.max()),
    )  # fmt: skip


def test_scores_survive_storage() -> None:
    found = scores(1, 50)
    again = Scores.from_bytes(found.to_bytes(), "binary")
    assert again.metrics() == found.metrics()
    assert (again.position == found.position).all()


def test_a_day_has_the_metrics_of_all_its_rows() -> None:
    parts = [scores(seed, 60) for seed in (1, 2, 3)]
    windows = [window(part, MONDAY + timedelta(hours=i)) for i, part in enumerate(parts)]
    (day,) = group(windows, "day")
    assert day.metrics("binary") == merge(parts).metrics()
    assert (day.rows, day.first_position, day.last_position) == (180, 1001, 3060)
    assert (day.start, day.end) == (MONDAY, MONDAY + timedelta(days=1))


def test_hours_partition_the_rows() -> None:
    found = scores(1, 90)
    times = np.datetime64("2026-03-02T08:00", "us") + np.arange(90) * np.timedelta64(2, "m")
    hours = list(split_by_hour(found, times))
    assert [(start.hour, len(part)) for start, part in hours] == [(8, 30), (9, 30), (10, 30)]
    merged = merge([part for _, part in hours]).metrics()
    assert merged.keys() == found.metrics().keys()
    assert all(merged[name] == pytest.approx(metrics) for name, metrics in found.metrics().items())


def test_windows_without_predictions_are_averaged() -> None:
    one, other = window(scores(1, 40), MONDAY), window(scores(2, 60), MONDAY)
    other.scores, other.rounded = None, True
    (day,) = group([one, other], "day")
    assert day.rounded
    expected = 0.4 * one.metrics["champion"]["loss"] + 0.6 * other.metrics["champion"]["loss"]
    assert day.metrics("binary")["champion"]["loss"] == pytest.approx(expected)


def test_the_error_of_an_average_is_that_of_independent_windows() -> None:
    """Two halves of many independent rows give about the error of the whole."""
    whole = scores(1, 4000)
    whole = Scores(whole.target, whole.position, whole.y, whole.weight, np.arange(4000), whole.contestants)
    half = np.arange(4000) < 2000
    halves = [window(whole.take(half), MONDAY), window(whole.take(~half), MONDAY)]
    error = average(halves)["champion"]["loss_se"]
    assert error == pytest.approx(whole.metrics()["champion"]["loss_se"], rel=0.02)


def test_the_verdict_compares_the_last_week_only() -> None:
    old, new = (
        window(scores(1, 400, shift=-3.0), MONDAY - timedelta(days=30)),
        window(scores(2, 400, shift=1.0), MONDAY),
    )
    pair = compare_with_frozen([old, new], "binary", "loss")
    assert pair is not None
    assert pair.rows == 400
    assert pair.second < pair.first
    assert compare_with_frozen([], "binary", "loss") is None
