"""The bound's formulas where they can do no better: a curvature that falls as fast as self-concordance allows."""

from __future__ import annotations

import math

import pytest
import torch

from core.kprior import MemoryPolicy, certify, train
from core.kprior.certificate.bounds import bounds
from tests.core.kprior.problems import distance, examples_of, l2, spec_of, stop_at

ONE = MemoryPolicy(cap=1)
"""A memory of one example: all others count by their tangents."""


@pytest.mark.parametrize("step", [0.01, 0.1, 0.3, 0.6])
def test_bounds_are_the_truth_for_one_rate(step: float) -> None:
    """Counts with one free weight: A''' = A'', so every inequality is an equality on the way down."""
    data = examples_of("count", 80, 1)
    spec = spec_of("count", 1, regularizer=l2(1e12))
    state = train(spec, [data], policy=ONE).state
    truth = math.log(float(data.y.mean()))
    assert float(state.w[1]) == pytest.approx(truth, rel=1e-6)
    there, memory = stop_at(state, data, torch.tensor([0.0, truth + step]).double(), ONE)
    measured = certify(there, memory, [data], holdout=[data])
    refined, after = measured.refined, measured.refined_certificate
    assert refined is not None
    assert after is not None
    change = math.exp(truth + step) - math.exp(truth)
    assert measured.certificate.bound == pytest.approx(step, rel=1e-3)
    assert measured.certificate.prediction_bound == pytest.approx(change, rel=1e-3)
    left = distance(refined, torch.tensor([0.0, truth]))
    assert left == pytest.approx(step - 1 + math.exp(-step), rel=0.05)
    assert after.bound is not None
    assert left * (1 - 1e-9) <= after.bound
    assert after.bound <= (1 + 2 * step) * left


def test_far_or_flat_is_infinite_and_a_quadratic_is_exact() -> None:
    assert bounds(1.0, 1.0, 1.0, 1.0).distance == math.inf
    assert bounds(0.9999, 1.0, 1.0, 1.0).distance < math.inf
    assert bounds(0.1, 1.0, 0.0, 1.0).widening == math.inf
    assert bounds(0.1, 1.0, -1.0, 1.0).widening == math.inf
    quadratic = bounds(3.0, 100.0, 4.0, 0.0)
    assert (quadratic.widening, quadratic.distance) == (1.0, 1.5)


@pytest.mark.parametrize("power", range(-14, 0))
def test_formula_has_no_seam_where_it_changes(power: int) -> None:
    """Series for tiny products, logarithms for others: never below the exact value, and near it."""
    n = 10.0**power
    exact = -math.log1p(-n)
    figures = bounds(n, 1.0, 1.0, 1.0)
    assert exact * (1 - 1e-15) <= figures.distance <= exact * (1 + 1e-9)
    # S/(1 - e^-S) = 1 + S/2 + S^2/12 - ..., with S near n
    assert 1 + n / 2 * (1 - 1e-3) <= figures.widening * (1 + 1e-15) <= 1 + 1.2 * n + 1e-15
