"""Merging stored windows into days and weeks."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta

import numpy as np
import pytest

from core.quality.evaluation_windows import Scores, merge, split_by_time
from core.quality.quality_report import combine, compare_with_frozen, group
from core.quality.scored_rows import ScoredRows
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
        job_id=job, start=start, rows=len(found), weight=float(found.weight.sum()), heaviest=found.largest_share(),
        champion=2, frozen=1, metrics=found.metrics(),
        scores=found.to_bytes(), alarm=False, rounded=False,
        first_position=int(found.position.min()), last_position=int(found.position.max()),
    )  # fmt: skip


def test_scores_survive_storage() -> None:
    found = scores(1, 50)
    again = Scores.from_bytes(found.to_bytes())
    assert again.metrics() == found.metrics()
    assert (again.position == found.position).all()


def test_a_day_has_the_metrics_of_all_its_rows() -> None:
    parts = [scores(seed, 60) for seed in (1, 2, 3)]
    windows = [window(part, MONDAY + timedelta(hours=i)) for i, part in enumerate(parts)]
    (day,) = group(windows, "day")
    assert day.metrics() == merge(parts).metrics()
    assert (day.rows, day.first_position, day.last_position) == (180, 1001, 3060)
    assert (day.start, day.end) == (MONDAY, MONDAY + timedelta(days=1))


def test_hours_partition_the_rows() -> None:
    found = scores(1, 90)
    times = np.datetime64("2026-03-02T08:00", "us") + np.arange(90) * np.timedelta64(2, "m")
    hours = list(split_by_time(found, times))
    assert [(start.hour, len(part)) for start, part in hours] == [(8, 30), (9, 30), (10, 30)]
    merged = merge([part for _, part in hours]).metrics()
    assert merged.keys() == found.metrics().keys()
    assert all(merged[name] == pytest.approx(metrics) for name, metrics in found.metrics().items())


@pytest.mark.parametrize(
    ("length", "apart"),
    [
        (timedelta(hours=1), timedelta(minutes=59)),
        (timedelta(days=1), timedelta(hours=7)),
        (timedelta(days=7), timedelta(days=3)),
    ],
)
def test_a_load_of_many_hours_has_few_windows(length: timedelta, apart: timedelta) -> None:
    """Two rows in each of 200 hours, days or weeks."""
    moments = [MONDAY.replace(tzinfo=None) + i * length + j * apart for i in range(200) for j in range(2)]
    windows = list(split_by_time(scores(1, 400), np.array(moments, "M8[us]")))
    assert [start for start, _ in windows] == [MONDAY + i * length for i in range(200)]
    assert {len(part) for _, part in windows} == {2}


def test_windows_without_predictions_give_the_metrics_that_follow_from_theirs() -> None:
    """Means over rows are exact; the AUC of a day cannot be computed from that of its hours, and is left out."""
    parts = [scores(1, 40), scores(2, 60)]
    one, other = (window(part, MONDAY) for part in parts)
    other.scores, other.rounded = None, True
    (day,) = group([one, other], "day")
    assert day.rounded
    exact, found = merge(parts).metrics()["champion"], day.metrics()
    for metric in ("loss", "log_loss", "brier", "accuracy"):
        assert found["champion"][metric] == pytest.approx(exact[metric])
    assert not {"auc", "f1", "average_precision"} & found["champion"].keys()
    assert "baseline" not in found


def test_the_error_of_an_average_is_that_of_independent_windows() -> None:
    """Two halves of many independent rows give about the error of the whole."""
    whole = scores(1, 4000)
    whole = Scores(whole.target, whole.position, whole.y, whole.weight, np.arange(4000), whole.contestants)
    half = np.arange(4000) < 2000
    halves = [window(whole.take(half), MONDAY), window(whole.take(~half), MONDAY)]
    error = combine(halves)["champion"]["loss_se"]
    assert error == pytest.approx(whole.metrics()["champion"]["loss_se"], rel=0.02)


def test_the_verdict_compares_the_last_week_only() -> None:
    old, new = (
        window(scores(1, 400, shift=-3.0), MONDAY - timedelta(days=30)),
        window(scores(2, 400, shift=1.0), MONDAY),
    )
    pair = compare_with_frozen([old, new], "loss")
    assert pair is not None
    assert pair.rows == 400
    assert pair.second < pair.first
    assert compare_with_frozen([], "loss") is None


def test_an_event_time_in_the_future_does_not_end_the_verdict() -> None:
    wrong = window(scores(3, 20, shift=-3.0), datetime(2199, 1, 1, tzinfo=UTC))
    pair = compare_with_frozen([window(scores(2, 400, shift=1.0), MONDAY), wrong], "loss")
    assert pair is not None
    assert pair.rows == 400


def test_a_segment_without_the_metric_is_not_the_worst() -> None:
    """The AUC of a single class is undefined."""
    found = scores(1, 200)
    names = np.where(np.arange(200) < 80, "both", np.where(found.y == 1, "one", "zero"))
    found = replace(found, segments={"country": names})
    (day,) = group([window(found, MONDAY)], "day")
    assert [segment.value for segment in day.segments("auc")][0] == "both"
    assert [segment.value for segment in day.segments("loss")][0] == max(
        day.segments("loss"), key=lambda segment: segment.metrics["loss"]
    ).value
