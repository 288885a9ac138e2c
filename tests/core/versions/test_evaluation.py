"""Figures of predictions, against scikit-learn's."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import t as student
from sklearn.metrics import (
    accuracy_score,
    confusion_matrix,
    f1_score,
    log_loss,
    mean_poisson_deviance,
    mean_squared_error,
    r2_score,
    roc_auc_score,
    root_mean_squared_error,
)

from core.inference.loaded_model import LoadedModel
from core.kprior import Examples, State, train
from core.kprior.posterior import LatePosterior
from core.tables.versions import Version, VersionKind
from core.tracking.charts import of_predictions
from core.versions import scores
from core.versions.evaluation import BINS, MAX_CLASSES, Mean, evaluate
from core.versions.privacy_rounding import coarse
from core.versions.scores import area_under_curve, explained_variance

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
def test_metrics_are_those_of_scikit_learn(kind: str, weighted: bool) -> None:
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
        },
        "classes": lambda: {
            "loss": log_loss(y.argmax(1), mean, labels=[0, 1, 2], **v),
            "accuracy": accuracy_score(y.argmax(1), mean.argmax(1), **v),
            "f1": f1_score(y.argmax(1), mean.argmax(1), average="macro"),
            "baseline_accuracy": max(accuracy_score(y.argmax(1), np.full(len(y), k), **v) for k in range(3)),
        },
        "number": lambda: {"loss": mean_squared_error(y, mean, **v) / 2},
        "count": lambda: {"loss": mean_poisson_deviance(y, mean, **v) / 2},
    }[kind]()
    if kind in ("number", "count"):
        baseline = np.full_like(y, np.average(y, weights=None if weight is None else weight[:, None]))
        expected |= {"rmse": root_mean_squared_error(y, mean, **v), "r2": r2_score(y, mean, **v)}
        expected["baseline_rmse"] = root_mean_squared_error(y, baseline, **v)
    assert {name: found.metrics[name] for name in expected} == pytest.approx(expected)
    errors = {f"{name}_se" for name in expected.keys() - {"r2", "baseline_accuracy"}}
    heaviest = {"heaviest"} if weighted else set()
    assert set(found.metrics) - set(expected) - {"calibration", "coverage"} == {"rows"} | heaviest | errors


def test_standard_errors_are_what_chance_makes_of_the_figures(kind: str) -> None:
    """Of many draws from the same rows: the spread of each figure."""
    state, holdout = trained(kind, problem(kind)), problem(kind, 400, seed=1)
    [found] = evaluate([state], halves(holdout))
    rng, drawn = np.random.default_rng(0), []
    for _ in range(400):
        again = holdout.take(torch.from_numpy(rng.integers(0, len(holdout), len(holdout))))
        drawn.append(evaluate([state], [again])[0].metrics)
    assert found.metrics["rows"] == len(holdout)
    names = {"binary": ("accuracy", "auc", "f1"), "classes": ("accuracy", "f1")}.get(kind, ("rmse", "baseline_rmse"))
    for name in ("loss", *names):
        spread = np.std([metrics[name] for metrics in drawn])
        assert found.metrics[f"{name}_se"] == pytest.approx(spread, rel=0.15)


def test_a_mean_of_large_numbers_keeps_the_digits_of_its_error() -> None:
    values = torch.randn(1000, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    near, far = Mean(), Mean()
    for part in values.split(300):
        near.add(part, torch.ones(len(part)))
        far.add(part + 1e9, torch.ones(len(part)))
    assert near.value == pytest.approx(float(values.mean()))
    assert near.error == pytest.approx(float(values.std(correction=0)) / 1000**0.5)
    assert far.error == pytest.approx(near.error, rel=1e-6)


def test_confusion_is_that_of_scikit_learn() -> None:
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
    assert set(of_predictions(version, {"kind": "number"})) == {"coverage.png"}


def test_a_certain_and_right_model_costs_nothing(kind: str) -> None:
    """Even of counts, whose likelihood alone would not be zero."""
    data = problem(kind, 50)
    [found] = evaluate([trained(kind, data)], [])
    f = {"binary": 80 * (2 * data.y - 1), "classes": 80 * data.y, "number": data.y, "count": data.y.log()}[kind]
    f = f.clamp(min=-80)
    found.add_predictions(f, found.state.predictor.family.mean(f), data.y, torch.ones(len(data)))
    assert found.metrics["loss"] == pytest.approx(0, abs=1e-9)
    assert found.metrics.get("accuracy", 1.0) == 1.0
    assert found.metrics.get("rmse", 0.0) == pytest.approx(0, abs=1e-9)


def test_several_versions_are_judged_as_each_alone(kind: str) -> None:
    data, holdout = problem(kind), problem(kind, seed=1)
    states = [trained(kind, data), trained(kind, data, delta=50.0)]
    together = [made.metrics for made in evaluate(states, halves(holdout))]
    assert together == [evaluate([state], halves(holdout))[0].metrics for state in states]
    assert together[0] != together[1]


def test_without_a_holdout_there_are_no_figures(kind: str) -> None:
    state = trained(kind, problem(kind))
    [found] = evaluate([state], [])
    assert (found.metrics, found.chart_data()) == ({}, {})


def test_predictions_that_are_no_numbers_are_no_errors(kind: str) -> None:
    data = problem(kind, 20)
    [found] = evaluate([trained(kind, data)], [data])
    f = torch.full_like(data.y, math.nan)
    found.add_predictions(f, f, data.y, torch.ones(len(data)))
    assert all(math.isfinite(value) for value in found.metrics.values())
    assert found.count == 40


def test_many_classes_are_not_drawn() -> None:
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


def test_figures_are_there_for_one_class_alone_and_for_ties() -> None:
    assert area_under_curve(np.array([0.1, 0.9]), np.array([True, True])) == {}
    tied = area_under_curve(np.array([0.5, 0.5, 0.5, 0.9]), np.array([True, False, False, True]))
    assert tied["auc"] == roc_auc_score([1, 0, 0, 1], [0.5, 0.5, 0.5, 0.9])
    assert explained_variance(np.array([1.0, 2.0]), np.array([3.0, 3.0]), np.ones(2)) == {
        "baseline_rmse": 0.0,
        "baseline_rmse_se": 0.0,
    }


@given(st.lists(st.tuples(st.floats(-9, 9), st.floats(0.01, 100.0)), min_size=2, max_size=20), st.data())
def test_a_mean_moves_by_little_more_than_its_error_when_a_row_goes(
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
def test_figures_that_are_shown_do_not_tell_a_row_that_weighs_much(weight: float) -> None:
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


@given(st.lists(st.tuples(st.integers(0, 6), st.booleans()), min_size=4, max_size=40), st.data())
def test_auc_moves_by_little_more_than_its_error_when_a_row_goes(
    rows: list[tuple[int, bool]], data: st.DataObject
) -> None:
    score, truth = np.array([float(s) for s, _ in rows]), np.array([t for _, t in rows])
    gone = data.draw(st.integers(0, len(rows) - 1))
    before, after = area_under_curve(score, truth), area_under_curve(np.delete(score, gone), np.delete(truth, gone))
    if before and after:
        many = (truth == truth[gone]).sum()
        assert abs(before["auc"] - after["auc"]) <= before["auc_se"] * many / (many - 1) + 1e-12


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 3)), min_size=2, max_size=40), st.data())
def test_f1_moves_by_no_more_than_its_error_when_a_row_goes(rows: list[tuple[int, int]], data: st.DataObject) -> None:
    def score(some: list[tuple[int, int]], confused: bool = False) -> dict[str, float]:
        truth, guess = np.array(some).T
        counted = (truth[truth == guess], guess, truth)
        confusion = confusion_matrix(truth, guess, labels=range(4)) if confused else None
        return scores.f1_score(*(np.bincount(classes, minlength=4) for classes in counted), confusion)

    gone = data.draw(st.integers(0, len(rows) - 1))
    before, after = score(rows), score(rows[:gone] + rows[gone + 1 :])
    truth, guess = np.array(rows).T
    assert before["f1"] == pytest.approx(f1_score(truth, guess, average="macro"))
    for found in (before, score(rows, confused=True)):
        assert abs(before["f1"] - after["f1"]) <= found["f1_se"] + 1e-12
