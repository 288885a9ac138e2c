"""Two versions on the same rows, against scikit-learn's figures and many draws."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from sklearn.metrics import root_mean_squared_error

from core.kprior import Examples, State
from core.versions.comparison import compare, weight_distance
from core.versions.evaluation import evaluate
from tests.core.versions.test_evaluation import TARGETS, halves, predicted, problem, trained


def apart(one: State, other: State, holdout: Examples) -> float | None:
    return compare(one, other, halves(holdout)).disagreement


@pytest.fixture(params=TARGETS)
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def test_both_sides_are_judged_as_each_alone(kind: str) -> None:
    data, holdout = problem(kind), problem(kind, seed=1)
    one, other = trained(kind, data), trained(kind, data, delta=50.0)
    pair = compare(one, other, halves(holdout))
    assert [pair.one.metrics, pair.other.metrics] == [made.metrics for made in evaluate([one, other], halves(holdout))]


def test_without_rows_nothing_is_known(kind: str) -> None:
    state = trained(kind, problem(kind))
    pair = compare(state, state, [])
    assert (pair.disagreement, pair.errors) == (None, {})


def test_a_version_does_not_differ_from_itself(kind: str) -> None:
    state, holdout = trained(kind, problem(kind)), problem(kind, seed=1)
    errors = compare(state, state, halves(holdout)).errors
    assert errors
    assert set(errors.values()) == {0.0}


def test_errors_are_what_chance_makes_of_the_differences(kind: str) -> None:
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


@pytest.mark.parametrize("kind", ["binary", "classes"])
def test_disagreement_is_the_share_of_examples_in_different_classes(kind: str) -> None:
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


def test_disagreement_of_large_numbers_keeps_its_digits() -> None:
    data, holdout = problem("number"), problem("number", seed=1)
    one, other = trained("number", data), trained("number", data, delta=50.0)
    far = Examples(holdout.key, holdout.x, holdout.y + 1e8)
    expected = apart(one, other, holdout)
    assert apart(one, other, far) == pytest.approx(expected, rel=1e-3)


def test_weights_are_compared_where_they_mean_the_same() -> None:
    data = problem("binary")
    one, other = trained("binary", data), trained("binary", data, delta=50.0)
    assert weight_distance(one, other) == pytest.approx(float((one.w - other.w).norm()))
    assert weight_distance(one, trained("binary", data, architecture={"kind": "linear", "degree": 2})) is None
    network = trained("binary", data, architecture={"kind": "mlp", "hidden": [2]})
    assert weight_distance(network, network) is None
