"""Metrics of predictions, checked with scikit-learn."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import assume, given
from hypothesis import strategies as st
from scipy.stats import t as student
from sklearn.metrics import (
    accuracy_score,
    average_precision_score,
    balanced_accuracy_score,
    brier_score_loss,
    confusion_matrix,
    f1_score,
    log_loss,
    mean_absolute_error,
    mean_poisson_deviance,
    mean_squared_error,
    precision_recall_curve,
    r2_score,
    roc_auc_score,
    roc_curve,
    root_mean_squared_error,
)

from core.inference.loaded_model import LoadedModel
from core.kprior import Examples, State, train
from core.kprior.state.posterior import LatePosterior
from core.quality.evaluation import BINS, CURVE_POINTS, MAX_CLASSES, evaluate, explained_variance
from core.quality.jackknife import leave_one_out_error
from core.quality.scored_rows import Metric, MetricOptions, ScoredRows
from core.quality.scoring import score_chunk, score_means
from core.quality.standard_errors import estimate
from core.quality.version_comparison import Mean
from core.tables.versions import Version, VersionKind
from core.tracking.charts import of_predictions
from core.versions.privacy_rounding import coarse, step_above

TARGETS = {
    "binary": {"kind": "binary"},
    "classes": {"kind": "classes", "values": ["a", "b", "c"]},
    "number": {"kind": "number"},
    "count": {"kind": "count"},
}


def targets(kind: str, f: Any, rng: np.random.Generator) -> Any:
    if kind == "binary":
        return (f + rng.logistic(size=len(f)) > 0).astype(float)
    if kind == "classes":
        return (np.stack([f, 0 * f, -f], 1) + rng.gumbel(size=(len(f), 3))).argmax(1).astype(float)
    return f + rng.normal(size=len(f)) if kind == "number" else rng.poisson(np.exp(f / 2)).astype(float)


def problem(kind: str, n: int = 300, seed: int = 0) -> Examples:
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(n, 3)).astype(np.float32)
    y = torch.from_numpy(targets(kind, x[:, 0] - x[:, 1], rng))
    y = torch.nn.functional.one_hot(y.long(), 3).double() if kind == "classes" else y[:, None]
    return Examples(torch.arange(1, n + 1), torch.from_numpy(x), y)


def trained(kind: str, data: Examples, delta: float = 1.0, architecture: dict[str, Any] | None = None) -> State:
    spec = {
        "input": {"kind": "vector", "dim": 3},
        "target": TARGETS[kind],
        "architecture": architecture or {"kind": "linear", "degree": 1},
        "regularizer": {"kind": "l2", "delta": delta},
    }
    return train(spec, [data]).state


def predicted(state: State, data: Examples) -> Any:
    return state.predictor.family.mean(state.predictor.outputs(state.w, data.x)).numpy()


def halves(data: Examples) -> list[Examples]:
    return [data.take(torch.arange(0, 100)), data.take(torch.arange(100, len(data)))]


@pytest.fixture(params=TARGETS)
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.mark.parametrize("weighted", [False, True])
def test_metrics_equal_those_of_scikit_learn(kind: str, weighted: bool) -> None:
    state, holdout = trained(kind, problem(kind)), problem(kind, seed=1)
    weight = np.random.default_rng(2).uniform(0.1, 9.0, len(holdout)) if weighted else None
    if weight is not None:
        holdout = replace(holdout, weight=torch.from_numpy(weight))
    [found] = evaluate([state], halves(holdout))
    mean, y, v = predicted(state, holdout), holdout.y.numpy(), {"sample_weight": weight}
    expected = {
        "binary": lambda: {
            "loss": log_loss(y[:, 0], mean[:, 0], **v),
            "accuracy": accuracy_score(y[:, 0], mean[:, 0] > 0.5, **v),
            "auc": roc_auc_score(y[:, 0], mean[:, 0]),
            "f1": f1_score(y[:, 0], mean[:, 0] > 0.5),
            "baseline_accuracy": accuracy_score(y[:, 0], np.full(len(y), y.mean() > 0.5), **v),
            "log_loss": log_loss(y[:, 0], mean[:, 0], **v),
            "brier": brier_score_loss(y[:, 0], mean[:, 0], **v),
            "balanced_accuracy": balanced_accuracy_score(y[:, 0], mean[:, 0] > 0.5),
            "average_precision": average_precision_score(y[:, 0], mean[:, 0]),
            "baseline_average_precision": average_precision_score(y[:, 0], np.zeros(len(y))),
        },
        "classes": lambda: {
            "loss": log_loss(y.argmax(1), mean, labels=[0, 1, 2], **v),
            "accuracy": accuracy_score(y.argmax(1), mean.argmax(1), **v),
            "f1": f1_score(y.argmax(1), mean.argmax(1), average="macro"),
            "baseline_accuracy": max(accuracy_score(y.argmax(1), np.full(len(y), k), **v) for k in range(3)),
            "log_loss": log_loss(y.argmax(1), mean, labels=[0, 1, 2], **v),
            "brier": np.average(((mean - y) ** 2).sum(1), weights=weight),
            "balanced_accuracy": balanced_accuracy_score(y.argmax(1), mean.argmax(1)),
        },
        "number": lambda: {"loss": mean_squared_error(y, mean, **v) / 2},
        "count": lambda: {"loss": mean_poisson_deviance(y, mean, **v) / 2},
    }[kind]()
    if kind in ("number", "count"):
        baseline = np.full_like(y, np.average(y, weights=None if weight is None else weight[:, None]))
        expected |= {"rmse": root_mean_squared_error(y, mean, **v), "r2": r2_score(y, mean, **v)}
        expected["mae"] = mean_absolute_error(y, mean, **v)
        expected["baseline_rmse"] = root_mean_squared_error(y, baseline, **v)
    assert {name: found.metrics[name] for name in expected} == pytest.approx(expected)
    errors = {f"{name}_se" for name in expected.keys() - {"r2", "baseline_accuracy", "baseline_average_precision"}}
    heaviest = {"heaviest"} if weighted else set()
    assert set(found.metrics) - set(expected) - {"calibration", "coverage"} == {"rows"} | heaviest | errors


def test_standard_errors_match_the_spread_over_random_samples(kind: str) -> None:
    """Of many draws from the same rows: the spread of each figure."""
    state, holdout = trained(kind, problem(kind)), problem(kind, 400, seed=1)
    [found] = evaluate([state], halves(holdout))
    rng, drawn = np.random.default_rng(0), []
    for _ in range(400):
        again = holdout.take(torch.from_numpy(rng.integers(0, len(holdout), len(holdout))))
        drawn.append(evaluate([state], [again])[0].metrics)
    assert found.metrics["rows"] == len(holdout)
    both = ("accuracy", "balanced_accuracy", "f1", "brier", "log_loss")
    names = {"binary": (*both, "auc", "average_precision"), "classes": both}.get(kind, ("rmse", "mae", "baseline_rmse"))
    for name in ("loss", *names):
        spread = np.std([metrics[name] for metrics in drawn])
        assert found.metrics[f"{name}_se"] == pytest.approx(spread, rel=0.15)


def test_the_error_of_a_mean_of_large_numbers_is_accurate() -> None:
    values = torch.randn(1000, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    near, far = Mean(), Mean()
    for part in values.split(300):
        near.add(part, torch.ones(len(part)))
        far.add(part + 1e9, torch.ones(len(part)))
    assert near.value == pytest.approx(float(values.mean()))
    assert near.error == pytest.approx(float(values.std(correction=0)) / 1000**0.5)
    assert far.error == pytest.approx(near.error, rel=1e-6)


def test_the_confusion_matrix_equals_that_of_scikit_learn() -> None:
    state, holdout = trained("classes", problem("classes")), problem("classes", seed=1)
    [found] = evaluate([state], halves(holdout))
    expected = confusion_matrix(holdout.y.argmax(1), predicted(state, holdout).argmax(1))
    assert found.chart_data()["confusion"] == expected.tolist()


@pytest.mark.parametrize("kind", ["binary", "classes"])
def test_calibration_is_the_mean_distance_of_confidence_and_accuracy_by_bins(kind: str) -> None:
    state, holdout = trained(kind, problem(kind), delta=100.0), problem(kind, seed=1)
    [found] = evaluate([state], halves(holdout))
    mean, y = predicted(state, holdout), holdout.y.numpy()
    binary = kind == "binary"
    confidence = mean[:, 0] if binary else mean.max(1)
    right = y[:, 0] if binary else mean.argmax(1) == y.argmax(1)
    error = 0.0
    for b in range(BINS):
        inside = (confidence >= b / BINS) & (confidence < (b + 1) / BINS)
        if inside.any():
            error += inside.mean() * abs(confidence[inside].mean() - right[inside].mean())
    assert found.metrics["calibration"] == pytest.approx(error)
    drawn = found.chart_data()["reliability"]
    assert sum(point["count"] for point in drawn) == len(holdout)
    assert sum(p["count"] * abs(p["confidence"] - p["accuracy"]) for p in drawn) / len(holdout) == pytest.approx(error)


@pytest.mark.parametrize("rows", [8, 300])
def test_coverage_is_the_share_of_numbers_within_their_intervals(rows: int) -> None:
    """Of few rows they are those of Student's t: much wider than a Gaussian's."""
    state, holdout = trained("number", problem("number", rows)), problem("number", seed=1)
    [found] = evaluate([state], halves(holdout))
    mean, unsure = LoadedModel.from_state(state, posterior=LatePosterior(state)).assess(holdout.x.numpy())
    y = holdout.y[:, 0].numpy()
    within = (unsure.low[:, 0] <= y) & (y <= unsure.high[:, 0])
    assert found.metrics["coverage"] == pytest.approx(within.mean())
    drawn = found.chart_data()["coverage"]
    assert [point["confidence"] for point in drawn] == pytest.approx(np.arange(1, 20) / 20)
    half = np.abs(y - mean[:, 0]) <= student.ppf(0.75, LatePosterior(state)().freedom) * unsure.std[:, 0]
    assert drawn[9]["accuracy"] == pytest.approx(half.mean())
    version = Version(number=3, kind=VersionKind.TRAINED, evaluation=found.chart_data())
    assert set(of_predictions(version, {"kind": "number"})) == {"coverage.svg"}


def test_the_loss_of_a_certain_and_correct_model_is_zero(kind: str) -> None:
    """Even of counts, whose likelihood alone would not be zero."""
    data = problem(kind, 50)
    [found] = evaluate([trained(kind, data)], [])
    f = {"binary": 80 * (2 * data.y - 1), "classes": 80 * data.y, "number": data.y, "count": data.y.log()}[kind]
    f = f.clamp(min=-80)
    found.add_predictions(f, found.state.predictor.family.mean(f), data.y, torch.ones(len(data)))
    assert found.metrics["loss"] == pytest.approx(0, abs=1e-9)
    assert found.metrics.get("accuracy", 1.0) == 1.0
    assert found.metrics.get("rmse", 0.0) == pytest.approx(0, abs=1e-9)


@pytest.mark.parametrize("kind", ["binary", "classes", "count"])
def test_a_recorded_prediction_that_was_certain_has_a_finite_loss(kind: str) -> None:
    """A network in single precision predicts probabilities of exactly 0 and 1."""
    data = problem(kind, 40)
    state = trained(kind, data)
    rows = score_chunk(state, data)
    mean = (data.y if kind != "count" else torch.zeros_like(data.y)).numpy()
    certain, wrong = score_means(state, rows, mean), score_means(state, rows, np.roll(mean, 1, 0))
    assert np.isfinite(certain.loss).all()
    assert np.isfinite(wrong.loss).all()
    if kind != "count":
        assert certain.loss == pytest.approx(0, abs=1e-9)
        assert wrong.loss.max() > 30


def test_evaluating_several_versions_equals_evaluating_each(kind: str) -> None:
    data, holdout = problem(kind), problem(kind, seed=1)
    states = [trained(kind, data), trained(kind, data, delta=50.0)]
    together = [made.metrics for made in evaluate(states, halves(holdout))]
    assert together == [evaluate([state], halves(holdout))[0].metrics for state in states]
    assert together[0] != together[1]


def test_without_a_holdout_there_are_no_metrics(kind: str) -> None:
    state = trained(kind, problem(kind))
    [found] = evaluate([state], [])
    assert (found.metrics, found.chart_data()) == ({}, {})


def test_a_single_row_has_metrics_without_standard_errors(kind: str) -> None:
    data = problem(kind)
    [found] = evaluate([trained(kind, data)], [data.take(torch.arange(1))])
    assert found.metrics["rows"] == 1
    assert math.isfinite(found.metrics["loss"])
    assert not [name for name in found.metrics if name.endswith("_se") and not name.startswith("baseline_")]


def test_predictions_that_are_not_finite_do_not_raise(kind: str) -> None:
    data = problem(kind, 20)
    [found] = evaluate([trained(kind, data)], [data])
    f = torch.full_like(data.y, math.nan)
    found.add_predictions(f, f, data.y, torch.ones(len(data)))
    assert all(math.isfinite(value) for value in found.metrics.values())
    assert found.count == 40


def test_there_is_no_confusion_matrix_for_many_classes() -> None:
    count = MAX_CLASSES + 1
    y = torch.nn.functional.one_hot(torch.arange(count), count).double()
    data = Examples(torch.arange(1, count + 1), torch.randn(count, 3, generator=torch.Generator().manual_seed(0)), y)
    spec = {
        "input": {"kind": "vector", "dim": 3},
        "target": {"kind": "classes", "values": list(range(count))},
        "architecture": {"kind": "linear", "degree": 1},
        "regularizer": {"kind": "l2", "delta": 1.0},
    }
    [found] = evaluate([train(spec, [data]).state], [data])
    assert found.chart_data()["confusion"] is None
    assert 0 <= found.metrics["accuracy"] <= 1


def test_metrics_exist_for_a_single_class_and_for_ties() -> None:
    assert math.isnan(estimate(ranked([(0.1, True), (0.9, True)]), "auc").value)
    tied = estimate(ranked([(0.5, True), (0.5, False), (0.5, False), (0.9, True)]), "auc")
    assert tied.value == roc_auc_score([1, 0, 0, 1], [0.5, 0.5, 0.5, 0.9])
    assert explained_variance(np.array([1.0, 2.0]), np.array([3.0, 3.0]), np.ones(2)) == {
        "baseline_rmse": 0.0,
        "baseline_rmse_se": 0.0,
    }


@given(st.lists(st.tuples(st.floats(-9, 9), st.floats(0.01, 100.0)), min_size=2, max_size=20), st.data())
def test_removing_a_row_changes_a_mean_by_little_more_than_its_error(
    rows: list[tuple[float, float]], data: st.DataObject
) -> None:
    def mean(some: list[tuple[float, float]]) -> Mean:
        made, (values, weight) = Mean(), torch.tensor(some, dtype=torch.float64).T
        made.add(values, weight)
        return made

    gone = data.draw(st.integers(0, len(rows) - 1))
    before, rest = mean(rows), rows[:gone] + rows[gone + 1 :]
    left = sum(v for _, v in rest)
    moved = abs(before.value - mean(rest).value)
    assert moved <= before.error * (left + rows[gone][1]) / left + 1e-9


@pytest.mark.parametrize("weight", [1.0, 30.0, 300.0])
def test_rounded_metrics_hide_a_row_with_a_large_weight(weight: float) -> None:
    rows = problem("binary")
    state, others = trained("binary", rows), replace(rows, weight=torch.ones(len(rows), dtype=torch.float64))
    wrong = Examples(rows.key[:1] + 10_000, rows.x[:1], 1 - rows.y[:1], torch.tensor([weight], dtype=torch.float64))
    [[with_row], [without]] = [evaluate([state], data) for data in ([others, wrong], [others])]
    step = 4 * weight / (len(rows) + weight)
    for name in ("accuracy", "baseline_accuracy", "calibration"):
        assert abs(with_row.metrics[name] - without.metrics[name]) < step
        shown = coarse(with_row.metrics)[name]
        assert shown is not None
        assert shown == pytest.approx(round(with_row.metrics[name] / step) * step, abs=1e-9)
    assert "heaviest" not in coarse(with_row.metrics)


def ranked(rows: list[tuple[float, bool]], precision: float | None = None) -> ScoredRows:
    """Binary rows, each with its probability and truth."""
    p, y = np.array([float(s) for s, _ in rows]), np.array([float(t) for _, t in rows])
    return ScoredRows.of("binary", np.zeros(len(y)), p[:, None], y, np.ones(len(y)), MetricOptions(0.45, precision))


RANKED: tuple[Metric, ...] = ("auc", "average_precision", "recall_at_precision", "f1", "balanced_accuracy", "brier")


@given(
    st.sampled_from(RANKED),
    st.lists(st.tuples(st.integers(0, 6).map(lambda s: s / 6), st.booleans()), min_size=4, max_size=40),
    st.sampled_from([0.3, 0.5, 0.8, 1.0]),
    st.data(),
)
def test_removing_a_row_changes_a_binary_metric_by_little_more_than_its_error(
    metric: Metric, rows: list[tuple[float, bool]], precision: float, data: st.DataObject
) -> None:
    gone = data.draw(st.integers(0, len(rows) - 1))
    before = estimate(ranked(rows, precision), metric)
    after = estimate(ranked(rows[:gone] + rows[gone + 1 :], precision), metric)
    assume(math.isfinite(before.value) and math.isfinite(after.value))
    many = sum(truth == rows[gone][1] for _, truth in rows) if metric == "auc" else len(rows)
    assume(many > 1)
    slack = many / (many - 1) if metric in ("auc", "brier") else 1.0
    error = before.se
    if metric == "balanced_accuracy":
        error = leave_one_out_error(ranked(rows), metric, before.value)
    assert abs(before.value - after.value) <= error * slack + 1e-12


@given(st.lists(st.tuples(st.integers(0, 6).map(lambda s: s / 6), st.booleans()), min_size=2, max_size=30))
def test_metrics_of_the_ranking_equal_those_of_scikit_learn(rows: list[tuple[float, bool]]) -> None:
    score, truth = [s for s, _ in rows], [t for _, t in rows]
    assume(any(truth))
    assert estimate(ranked(rows), "average_precision").value == pytest.approx(average_precision_score(truth, score))
    precision, recall, _ = precision_recall_curve(truth, score)
    for wanted in (0.2, 0.5, 0.9, 1.0):
        found = estimate(ranked(rows, wanted), "recall_at_precision").value
        assert found == pytest.approx(recall[precision >= wanted].max())


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 3)), min_size=2, max_size=40), st.data())
def test_removing_a_row_changes_metrics_of_classes_by_no_more_than_their_error(
    rows: list[tuple[int, int]], data: st.DataObject
) -> None:
    def scored(some: list[tuple[int, int]]) -> ScoredRows:
        truth, guess = np.array(some).T
        zeros = np.zeros(len(truth))
        return ScoredRows("classes", zeros, zeros, guess, truth.astype(float), np.ones(len(truth)))

    gone = data.draw(st.integers(0, len(rows) - 1))
    truth, guess = np.array(rows).T
    expected = {"f1": f1_score(truth, guess, average="macro"), "balanced_accuracy": None}
    for name, value in expected.items():
        before = estimate(scored(rows), name)  # type: ignore[arg-type]
        after = estimate(scored(rows[:gone] + rows[gone + 1 :]), name)  # type: ignore[arg-type]
        assert value is None or before.value == pytest.approx(value)
        error = leave_one_out_error(scored(rows), name, before.value)  # type: ignore[arg-type]
        assert abs(before.value - after.value) <= error + 1e-12


def test_the_threshold_decides_the_class_and_the_metrics_that_depend_on_it() -> None:
    state, holdout = trained("binary", problem("binary")), problem("binary", seed=1)
    [usual] = evaluate([state], halves(holdout))
    [found] = evaluate([state], halves(holdout), MetricOptions(0.2, 0.75))
    y, p = holdout.y[:, 0].numpy(), predicted(state, holdout)[:, 0]
    assert found.metrics["accuracy"] == pytest.approx(accuracy_score(y, p > 0.2)) != usual.metrics["accuracy"]
    assert found.metrics["f1"] == pytest.approx(f1_score(y, p > 0.2))
    assert found.metrics["balanced_accuracy"] == pytest.approx(balanced_accuracy_score(y, p > 0.2))
    precision, recall, _ = precision_recall_curve(y, p)
    assert found.metrics["recall_at_precision"] == pytest.approx(recall[precision >= 0.75].max())
    assert found.chart_data()["confusion"] == confusion_matrix(y, p > 0.2).tolist()
    assert found.chart_data()["threshold"] == 0.2
    independent = ("loss", "auc", "average_precision", "brier", "calibration")
    assert {n: found.metrics[n] for n in independent} == {n: usual.metrics[n] for n in independent}


@pytest.mark.parametrize("rows", [40, 3000])
def test_the_curve_consists_of_points_of_scikit_learns_curves(rows: int) -> None:
    state, holdout = trained("binary", problem("binary")), problem("binary", rows, seed=1)
    [found] = evaluate([state], [holdout])
    curve, y, p = found.chart_data()["curve"], holdout.y[:, 0].numpy(), predicted(state, holdout)[:, 0]
    assert len(curve["recall"]) == len(curve["threshold"]) <= CURVE_POINTS
    false_positives, recall, _ = roc_curve(y, p, drop_intermediate=False)
    points = set(zip(false_positives.round(3), recall.round(3), strict=True))
    drawn = zip(curve["false_positive_rate"], curve["recall"], strict=True)
    assert all(min(abs(a - x) + abs(b - u) for x, u in points) < 2e-3 for a, b in drawn)
    area = np.trapezoid([0.0, *curve["recall"]], [0.0, *curve["false_positive_rate"]])
    assert area == pytest.approx(roc_auc_score(y, p), abs=0.01)
    for threshold, of, precision in zip(curve["threshold"], curve["recall"], curve["precision"], strict=True):
        chosen = p >= threshold - 1e-3
        assert y[chosen].mean() == pytest.approx(precision, abs=0.05)
        assert chosen[y == 1].mean() == pytest.approx(of, abs=0.05)


@pytest.mark.parametrize("name", ["average_precision", "balanced_accuracy", "log_loss", "brier", "recall_at_precision"])
def test_rounded_metrics_do_not_distinguish_holdouts_that_differ_in_one_row(name: str) -> None:
    """The grid is at least twice as coarse as the largest change that any single row makes."""
    state, rows = trained("binary", problem("binary")), problem("binary", 60, seed=1)
    options = MetricOptions(precision=0.8)
    [whole] = evaluate([state], [rows], options)
    shown = coarse(whole.metrics)[name]
    assert shown is not None
    step = step_above(2 * whole.metrics[f"{name}_se"])
    assert shown == pytest.approx(round(whole.metrics[name] / step) * step, abs=step)
    for i in range(len(rows)):
        [rest] = evaluate([state], [rows.take(torch.tensor([j for j in range(len(rows)) if j != i]))], options)
        assert abs(rest.metrics[name] - whole.metrics[name]) <= step / 2 * len(rows) / (len(rows) - 1)


def test_means_of_a_ridge_classifier_beyond_0_and_1_are_counted() -> None:
    """They made the evaluation fail, and with it every job of the model, those of erasures included."""
    data = problem("binary")
    spec = {**trained("binary", data).spec, "loss": {"kind": "squared"}}
    state = train(spec, [data]).state
    far = Examples(data.key, 3 * data.x, data.y)
    mean = state.predictor.outputs(state.w, far.x)[:, 0].numpy()
    assert mean.min() < -0.2
    assert mean.max() > 1.2
    [found] = evaluate([state], [far])
    bins = found.chart_data()["reliability"]
    assert sum(one["count"] for one in bins) == len(far)
    place = np.digitize(mean, np.arange(1, BINS) / BINS)
    right = [abs((mean[place == i] - far.y[:, 0].numpy()[place == i]).sum()) for i in range(BINS)]
    assert found.metrics["calibration"] == pytest.approx(sum(right) / len(far))
