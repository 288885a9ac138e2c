"""Comparisons of two versions on the same rows, checked with scikit-learn and random samples."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.metrics import root_mean_squared_error

from core.kprior import Examples, State, train
from core.quality.evaluation import evaluate
from core.quality.version_comparison import MIN_ROWS, compare, weight_distance
from tests.core.quality.test_evaluation import TARGETS, halves, predicted, problem, trained


def apart(one: State, other: State, holdout: Examples) -> float | None:
    return compare(one, other, halves(holdout)).disagreement


@pytest.fixture(params=TARGETS)
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def test_both_versions_have_the_metrics_of_a_separate_evaluation(kind: str) -> None:
    data, holdout = problem(kind), problem(kind, seed=1)
    one, other = trained(kind, data), trained(kind, data, delta=50.0)
    pair = compare(one, other, halves(holdout))
    assert [pair.one.metrics, pair.other.metrics] == [made.metrics for made in evaluate([one, other], halves(holdout))]


def test_without_rows_there_is_no_comparison(kind: str) -> None:
    state = trained(kind, problem(kind))
    pair = compare(state, state, [])
    assert (pair.disagreement, pair.errors) == (None, {})


def test_a_version_does_not_differ_from_itself(kind: str) -> None:
    state, holdout = trained(kind, problem(kind)), problem(kind, seed=1)
    errors = compare(state, state, halves(holdout)).errors
    assert errors
    assert set(errors.values()) == {0.0}


def test_errors_match_the_spread_of_differences_over_random_samples(kind: str) -> None:
    """Of many draws from the same rows: the spread of each difference, which is less than that of either side."""
    holdout = problem(kind, 400, seed=1)
    one, other = trained(kind, problem(kind)), trained(kind, problem(kind, 60, seed=2), delta=5.0)
    pair = compare(one, other, halves(holdout))
    rng, drawn = np.random.default_rng(0), []
    for _ in range(300):
        again = compare(one, other, [holdout.take(torch.from_numpy(rng.integers(0, len(holdout), len(holdout))))])
        ours, theirs = again.one.metrics, again.other.metrics
        figures = {name: ours[name] - theirs[name] for name in ("loss", "accuracy") if name in ours}
        drawn.append({**figures, "disagreement": again.disagreement or 0.0})
    assert pair.errors.keys() == drawn[0].keys()
    for name, error in pair.errors.items():
        assert error == pytest.approx(np.std([figures[name] for figures in drawn]), rel=0.2)
    assert pair.errors["loss"] < pair.one.metrics["loss_se"]


def test_a_version_is_worse_only_if_chance_does_not_explain_it(kind: str) -> None:
    """Of a bad one, every draw of the holdout says so; and never of both, each by another figure."""
    one, other = trained(kind, problem(kind, 200, seed=1)), trained(kind, problem(kind, 200, seed=2))
    bad = trained(kind, problem(kind, 200, seed=1), delta=1e4)
    for seed in range(10, 60):
        holdout = [problem(kind, 300, seed=seed)]
        assert None in (compare(one, other, holdout).worse, compare(other, one, holdout).worse)
        assert compare(one, bad, holdout).worse == "loss"
        assert compare(bad, one, holdout).worse is None
        assert compare(one, one, holdout).worse is None


def test_few_of_many_equal_versions_are_called_worse() -> None:
    """Two versions that are equally far from the truth, to either side of it."""
    one = trained("binary", problem("binary", 2_000))
    left, right = (replace(one, w=one.w + torch.tensor([0.0, 0.0, s, 0.0])) for s in (0.3, -0.3))
    shift = float(one.w[2])  # the truth of the third input is 0
    left, right = (replace(s, w=s.w - torch.tensor([0.0, 0.0, shift, 0.0])) for s in (left, right))
    called = [compare(left, right, [problem("binary", 400, seed)]).worse is not None for seed in range(100, 300)]
    assert 0 < sum(called) <= 20


def test_the_accuracy_decides_where_the_loss_does_not() -> None:
    """Rows that are nearly undecided, named wrongly: that costs no loss to speak of, but others' certainty does."""
    one = trained("binary", problem("binary"))
    fair = replace(one, w=torch.tensor([1e-3, 0.0, 0.0, 0.0], dtype=torch.float64))
    unfair = replace(one, w=-fair.w)
    rng = np.random.default_rng(0)
    x = rng.normal(size=(400, 3)).astype(np.float32)
    y = np.where(rng.random(400) < 0.6, x[:, 0] > 0, x[:, 0] < 0) * 1.0
    # of one row in a hundred nearly all loss comes, and to no side
    x[::100], y[::100] = 5_000.0, np.arange(4) % 2
    holdout = Examples(torch.arange(400), torch.from_numpy(x), torch.from_numpy(y)[:, None])
    assert compare(fair, unfair, [holdout]).worse == "accuracy"
    assert compare(unfair, fair, [holdout]).worse is None


def test_too_few_rows_call_nothing_worse() -> None:
    one, bad = trained("binary", problem("binary")), trained("binary", problem("binary"), delta=1e4)
    assert compare(one, bad, [problem("binary", MIN_ROWS - 1, seed=5)]).worse is None
    assert compare(one, bad, []).worse is None


def test_a_loss_that_is_not_finite_is_worse() -> None:
    one = trained("number", problem("number"))
    broken = replace(one, w=one.w * torch.nan)
    pair = compare(one, broken, halves(problem("number", seed=1)))
    assert (pair.worse, pair.largest, pair.disagreement) == ("loss", None, None)
    assert compare(broken, one, halves(problem("number", seed=1))).worse is None


def test_the_largest_difference_is_over_all_predictions(kind: str) -> None:
    data, holdout = problem(kind), problem(kind, seed=1)
    one, other = trained(kind, data), trained(kind, data, delta=50.0)
    expected = np.abs(predicted(one, holdout) - predicted(other, holdout)).max()
    assert compare(one, other, halves(holdout)).largest == pytest.approx(expected)
    assert compare(one, other, []).largest is None


@pytest.mark.parametrize("kind", ["binary", "classes"])
def test_disagreement_is_the_fraction_of_rows_in_different_classes(kind: str) -> None:
    data, holdout = problem(kind), problem(kind, seed=1)
    one, other = trained(kind, data), trained(kind, problem(kind, 20, seed=2))
    a, b = predicted(one, holdout), predicted(other, holdout)
    share = float(np.mean(a.argmax(1) != b.argmax(1) if kind == "classes" else (a > 0.5) != (b > 0.5)))
    assert share > 0
    assert apart(one, other, holdout) == pytest.approx(share)
    assert apart(one, one, holdout) == 0


@pytest.mark.parametrize("kind", ["number", "count"])
def test_disagreement_of_numbers_is_relative_to_their_deviation(kind: str) -> None:
    data, holdout = problem(kind), problem(kind, seed=1)
    one, other = trained(kind, data), trained(kind, data, delta=50.0)
    expected = root_mean_squared_error(predicted(one, holdout), predicted(other, holdout)) / holdout.y.numpy().std()
    assert apart(one, other, holdout) == pytest.approx(expected)
    assert apart(one, one, holdout) == 0


def test_disagreement_of_large_numbers_is_accurate() -> None:
    data, holdout = problem("number"), problem("number", seed=1)
    one, other = trained("number", data), trained("number", data, delta=50.0)
    far = Examples(holdout.key, holdout.x, holdout.y + 1e8)
    expected = apart(one, other, holdout)
    assert apart(one, other, far) == pytest.approx(expected, rel=1e-3)


def test_weights_are_compared_only_between_equal_specs() -> None:
    data = problem("binary")
    one, other = trained("binary", data), trained("binary", data, delta=50.0)
    assert weight_distance(one, other) == pytest.approx(float((one.w - other.w).norm()))
    assert weight_distance(one, trained("binary", data, architecture={"kind": "linear", "degree": 2})) is None
    network = trained("binary", data, architecture={"kind": "mlp", "hidden": [2]})
    assert weight_distance(network, network) is None


def test_versions_of_different_losses_are_compared_by_their_classes_alone() -> None:
    """A log loss and a squared hinge have no common unit, nor have a probability and a score."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(400, 2, generator=generator)
    y = (x[:, :1] + 0.5 * torch.randn(400, 1, generator=generator) > 0).double()
    data = [Examples(torch.arange(400), x, y)]
    spec: Any = {"input": {"kind": "vector", "dim": 2}, "target": {"kind": "binary"}}
    spec |= {"architecture": {"kind": "linear"}, "regularizer": {"kind": "l2", "delta": 1.0}}
    logistic, machine = train(spec, data).state, train(spec | {"loss": {"kind": "squared_hinge"}}, data).state
    for one, other in ((logistic, machine), (machine, logistic)):
        found = compare(one, other, data)
        assert (found.largest, found.worse) == (None, None)
        a, b = (state.predictor.outputs(state.w, x)[:, 0] > 0 for state in (one, other))
        assert found.disagreement == pytest.approx(float((a != b).double().mean()))
