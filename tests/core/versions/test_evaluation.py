"""Figures of predictions, against scikit-learn's."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.metrics import (
    accuracy_score,
    confusion_matrix,
    log_loss,
    mean_poisson_deviance,
    mean_squared_error,
    root_mean_squared_error,
)

from core.kprior import Examples, State, train
from core.versions.evaluation import BINS, MOST_CLASSES, Mean, evaluate

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
        },
        "classes": lambda: {
            "loss": log_loss(y.argmax(1), mean, labels=[0, 1, 2], **v),
            "accuracy": accuracy_score(y.argmax(1), mean.argmax(1), **v),
        },
        "number": lambda: {"loss": mean_squared_error(y, mean, **v) / 2, "rmse": root_mean_squared_error(y, mean, **v)},
        "count": lambda: {
            "loss": mean_poisson_deviance(y, mean, **v) / 2,
            "rmse": root_mean_squared_error(y, mean, **v),
        },
    }[kind]()
    assert {name: found.metrics[name] for name in expected} == pytest.approx(expected)
    errors = {f"{name}_se" for name in expected}
    assert set(found.metrics) - set(expected) - {"calibration"} == {"rows"} | errors


def test_standard_errors_are_what_chance_makes_of_the_figures(kind: str) -> None:
    """Of many draws from the same rows: the spread of each figure."""
    state, holdout = trained(kind, problem(kind)), problem(kind, 400, seed=1)
    [found] = evaluate([state], halves(holdout))
    rng, drawn = np.random.default_rng(0), []
    for _ in range(400):
        again = holdout.take(torch.from_numpy(rng.integers(0, len(holdout), len(holdout))))
        drawn.append(evaluate([state], [again])[0].metrics)
    assert found.metrics["rows"] == len(holdout)
    for name in ("loss", "accuracy" if found.classifies else "rmse"):
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
    assert found.drawn()["confusion"] == expected.tolist()


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
    drawn = found.drawn()["reliability"]
    assert sum(point["count"] for point in drawn) == len(holdout)
    assert sum(p["count"] * abs(p["confidence"] - p["accuracy"]) for p in drawn) / len(holdout) == pytest.approx(error)


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
    assert (found.metrics, found.drawn()) == ({}, {})


def test_predictions_that_are_no_numbers_are_no_errors(kind: str) -> None:
    data = problem(kind, 20)
    [found] = evaluate([trained(kind, data)], [data])
    f = torch.full_like(data.y, math.nan)
    found.add_predictions(f, f, data.y, torch.ones(len(data)))
    assert all(math.isfinite(value) for value in found.metrics.values())
    assert found.count == 40


def test_many_classes_are_not_drawn() -> None:
    count = MOST_CLASSES + 1
    y = torch.nn.functional.one_hot(torch.arange(count), count).double()
    data = Examples(torch.arange(1, count + 1), torch.randn(count, 3, generator=torch.Generator().manual_seed(0)), y)
    spec = {
        "input": {"kind": "vector", "dim": 3},
        "target": {"kind": "classes", "values": list(range(count))},
        "architecture": {"kind": "linear", "degree": 1},
        "regularizer": {"kind": "l2", "delta": 1.0},
    }
    [found] = evaluate([train(spec, [data]).state], [data])
    assert found.drawn()["confusion"] is None
    assert 0 <= found.metrics["accuracy"] <= 1
