"""The gate and the batch alarm, on the scenarios that their limits were chosen for.

The same rule as in production decides; the models are scikit-learn's, so that hundreds of batches take seconds.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
from numpy.typing import NDArray
from sklearn.linear_model import LogisticRegression

from core.models.policy import GatePolicy
from core.promotion.gate import ComparedRows, Reference, compare_segments, run_gate
from core.promotion.gate_rule import Limits, judge
from core.quality.batch_alarm import BatchLoss, find_suspicious
from core.quality.scored_rows import ScoredRows
from core.quality.segments import Segment
from core.quality.standard_errors import Estimate, PairedEstimate, compare, estimate

Rows = tuple[NDArray[np.float64], NDArray[np.int64]]
D = 12


class World:
    """Rows of a logistic model whose inputs, concept or labels can change."""

    def __init__(self, seed: int) -> None:
        self.rng = np.random.default_rng(seed)
        self.w = self.rng.normal(size=D) / 2

    def rows(self, n: int, mean: float = 0.0, tilt: float = 0.0, flip: float = 0.0) -> Rows:
        x = self.rng.normal(size=(n, D))
        x[:, :3] += mean
        y = (self.rng.random(n) < 1 / (1 + np.exp(-(x @ self.w + tilt * x[:, 4])))).astype(int)
        return x, np.where(self.rng.random(n) < flip, 1 - y, y)


def score(model: LogisticRegression, rows: Rows) -> ScoredRows:
    x, y = rows
    p = np.clip(model.predict_proba(x)[:, 1], 1e-12, 1 - 1e-12)
    return ScoredRows.of("binary", -np.log(np.where(y == 1, p, 1 - p)), p[:, None], y.astype(float), np.ones(len(y)))


def join(one: Rows, other: Rows) -> Rows:
    return np.vstack([one[0], other[0]]), np.concatenate([one[1], other[1]])


def live_through(seed: int, batches: Callable[[World], list[Rows]]) -> tuple[list[int], list[int], float]:
    """Days with a rejection, days with an alarm, and the relative loss of the final model on the original world."""
    world = World(seed)
    train, holdout, test = world.rows(20_000), world.rows(2_000), world.rows(20_000)
    confirmed_on = holdout
    champion = confirmed = LogisticRegression().fit(*train)
    clean = score(champion, test).loss.mean()
    usual, on_holdout = list[BatchLoss](), estimate(score(champion, holdout), "loss")
    rejected, alarms = [], []
    for day, batch in enumerate(batches(world)):
        held_out = np.arange(len(batch[1])) % 10 == 0
        before = BatchLoss(estimate(score(champion, batch), "loss"), len(batch[1]), str(day))
        alarm = find_suspicious(before, usual, on_holdout)
        if alarm:
            alarms.append(day)
            usual = [one for one in usual if one not in alarm]
        else:
            usual.append(before)
        joined = join(train, (batch[0][~held_out], batch[1][~held_out]))
        new = LogisticRegression().fit(*joined)
        verdicts = [
            judge(compare(score(old, rows), score(new, rows), "loss"), Limits())
            for old, rows in ((champion, holdout), (confirmed, confirmed_on))
        ]
        if not all(verdict["passed"] for verdict in verdicts):
            rejected.append(day)
            continue
        train, champion = joined, new
        if not alarm:
            holdout = join(holdout, (batch[0][held_out], batch[1][held_out]))
    return rejected, alarms, float(score(champion, test).loss.mean() / clean - 1)


@pytest.mark.parametrize("seed", range(3))
def test_flipped_labels_are_rejected_and_later_batches_are_accepted(seed: int) -> None:
    def batches(world: World) -> list[Rows]:
        return [world.rows(15_000 if day == 2 else 600, flip=1.0 if day == 2 else 0) for day in range(5)]

    rejected, alarms, loss = live_through(seed, batches)
    assert rejected == [2]
    assert alarms == [2]
    assert loss < 0.01


@pytest.mark.parametrize("seed", range(3))
def test_small_steps_do_not_add_up(seed: int) -> None:
    rejected, _, loss = live_through(seed, lambda world: [world.rows(1_500, flip=1.0) for _ in range(10)])
    assert rejected
    assert loss < 0.06


@pytest.mark.parametrize("kind", ["inputs", "concept", "sudden"])
def test_drift_is_promoted(kind: str) -> None:
    def batches(world: World) -> list[Rows]:
        if kind == "inputs":
            return [world.rows(600, mean=0.15 * day) for day in range(10)]
        if kind == "concept":
            return [world.rows(600, tilt=0.1 * day) for day in range(10)]
        return [world.rows(600, tilt=1.5 if day >= 4 else 0) for day in range(10)]

    assert [live_through(seed, batches)[0] for seed in range(3)] == [[], [], []]


def test_a_third_of_flipped_labels_raises_an_alarm() -> None:
    def batches(world: World) -> list[Rows]:
        return [world.rows(600, flip=0.33 if day == 3 else 0) for day in range(5)]

    assert [live_through(seed, batches)[1] for seed in range(3)] == [[3], [3], [3]]


@pytest.mark.parametrize("size", [20, 45, 90])
def test_small_batches_of_flipped_labels_raise_an_alarm_together(size: int) -> None:
    """Otherwise, somebody could poison a model in steps that are too small for an alarm."""

    def batches(world: World) -> list[Rows]:
        return [world.rows(size, flip=1.0 if day >= 8 else 0) for day in range(16)]

    for seed in range(3):
        _, alarms, _ = live_through(seed, batches)
        assert alarms
        assert 8 <= alarms[0] <= 8 + math.ceil(100 / size)


def test_small_ordinary_batches_are_not_suspicious_also_after_an_alarm() -> None:
    def batches(world: World) -> list[Rows]:
        sizes = [10, 30, 60, 99, 600]
        return [world.rows(sizes[day % 5], flip=1.0 if 60 <= day < 66 else 0) for day in range(200)]

    for seed in range(3):
        _, alarms, _ = live_through(seed, batches)
        assert alarms
        assert all(60 <= day < 66 for day in alarms)


def test_a_few_rows_are_not_the_usual_loss() -> None:
    """The chance of five tiny batches decided whether the next large one raised an alarm."""
    tiny = [BatchLoss(Estimate(0.2, 0.1), 3, str(i)) for i in range(5)]
    large = BatchLoss(Estimate(0.5, 0.02), 600)
    assert find_suspicious(large, tiny, Estimate(0.5, 0.02)) is None
    assert find_suspicious(large, tiny, None) is None


def test_ordinary_batches_are_neither_rejected_nor_suspicious() -> None:
    runs = [live_through(seed, lambda world: [world.rows(600) for _ in range(40)]) for seed in range(3)]
    assert sum(len(rejected) for rejected, _, _ in runs) <= 1  # of 120
    assert sum(len(alarms) for _, alarms, _ in runs) <= 1


def test_higher_is_better_for_accuracy_and_lower_for_loss() -> None:
    better_accuracy, worse_accuracy = PairedEstimate(0.8, 0.9, 0.01, 500), PairedEstimate(0.9, 0.8, 0.01, 500)
    assert judge(better_accuracy, Limits("accuracy"))["passed"] is True
    assert judge(worse_accuracy, Limits("accuracy"))["passed"] is False
    assert judge(better_accuracy, Limits("loss"))["passed"] is False
    assert judge(worse_accuracy, Limits("loss"))["passed"] is True


def test_a_candidate_without_a_finite_metric_is_rejected() -> None:
    assert judge(PairedEstimate(0.5, float("inf"), float("nan"), 500), Limits())["passed"] is False
    assert judge(PairedEstimate(0.5, float("nan"), float("nan"), 500), Limits())["passed"] is False


def test_too_few_rows_are_not_judged() -> None:
    verdict = judge(PairedEstimate(0.5, 5.0, 0.01, 12), Limits())
    assert (verdict["passed"], verdict["reason"], verdict["rows"]) == (None, "too_few_rows", 12)


def test_a_holdout_about_one_subject_is_not_judged() -> None:
    """Its standard error is unknown, not zero."""
    rows = score(LogisticRegression().fit(*World(0).rows(500)), World(1).rows(50))
    worse = replace(rows, loss=rows.loss * 1.2)
    verdict = judge(compare(rows, worse, "loss", np.zeros(50, np.int64)), Limits())
    assert (verdict["passed"], verdict["reason"]) == (None, "too_few_rows")


def test_a_heavy_row_does_not_decide_alone() -> None:
    """Whoever sends a wrong row with a large weight to the holdout would otherwise choose what passes."""
    world = World(0)
    holdout = world.rows(1500)
    right = np.argmax(score(LogisticRegression().fit(*world.rows(2000)), holdout).probability)
    holdout[1][right] = 1 - holdout[1][right]
    weight = np.where(np.arange(1500) == right, 1e6, 1.0)
    good, flipped = (LogisticRegression().fit(*world.rows(2000, flip=flip)) for flip in (0.0, 0.4))
    rows = [replace(score(model, holdout), weight=weight) for model in (good, flipped)]
    champion = Reference(1, 1500, ComparedRows(np.arange(1, 1501), *rows))
    assert run_gate(champion, champion, [], GatePolicy())["passed"] is False


def test_a_segment_that_was_not_judged_is_not_the_worst() -> None:
    world = World(0)
    rows = score(LogisticRegression().fit(*world.rows(500)), world.rows(300))
    groups = np.arange(300) % 3
    single = np.where(groups == 0, 1.0, rows.y)  # one class: its AUC is undefined
    rows = replace(rows, y=single)
    segments = [Segment("country", str(k), groups == k) for k in range(3)]
    compared = ComparedRows(np.arange(1, 301), rows, replace(rows, score=1 - rows.score), segments=segments)
    found = compare_segments(Reference(1, 300, compared), [], GatePolicy(metric="auc"))
    assert [(segment["value"], segment["passed"]) for segment in found][-1] == ("0", None)
    assert found[0]["passed"] is False
