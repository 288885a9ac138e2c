"""Regularizers and the divergence between two of them, in closed form and in general."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from core.kprior.model.predictor import Predictor
from core.kprior.model.regularizers import L2, bregman, regularizer_of
from tests.core.kprior.problems import l2, spec_of

P = 6


def vectors(*sizes: float) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    return [size * torch.randn(P, generator=generator, dtype=torch.float64) for size in sizes]


def test_divergence_of_two_deltas_is_the_papers() -> None:
    """1/2 (gamma |w|^2 + delta |w*|^2 - 2 delta w'w*), Eq. 20 for L2."""
    w, w_star = vectors(1.0, 2.0)
    gamma, delta = 0.3, 1.7
    new, old = (L2(torch.full((P,), d, dtype=torch.float64)) for d in (gamma, delta))
    truth = 0.5 * (gamma * w @ w + delta * w_star @ w_star - 2 * delta * w @ w_star)
    torch.testing.assert_close(bregman(new, old, w, w_star), truth)
    torch.testing.assert_close(bregman(old, old, w, w_star), 0.5 * delta * ((w - w_star) ** 2).sum())


@pytest.mark.parametrize("freed", [[], [5], [0, 5]])
def test_divergence_is_what_makes_change_regularizer_exact(freed: list[int]) -> None:
    """grad B_GR(w || w*) = grad G(w) - grad R(w*), whichever weights either of them leaves alone or draws elsewhere."""
    w, w_star, m = vectors(1.0, 2.0, 3.0)
    new, old = L2(torch.linspace(0.1, 2, P).double(), toward=m), L2(torch.linspace(3, 1, P).double(), toward=-2 * m)
    old.delta[freed] = 0
    new.delta[1] = 0
    w.requires_grad_()
    (gradient,) = torch.autograd.grad(bregman(new, old, w, w_star), w)
    torch.testing.assert_close(gradient, new.delta * (w.detach() - m) - old.delta * (w_star + 2 * m))
    torch.testing.assert_close(bregman(old, old, w_star, w_star), torch.zeros(()).double(), atol=1e-12, rtol=0)


def test_conjugate_is_the_supremum() -> None:
    eta, w, m = vectors(1.0, 1.0, 1.0)
    regularizer = L2(torch.linspace(0.5, 2, P).double(), toward=m)
    best = m + eta / regularizer.delta
    value = regularizer.conjugate(eta)
    torch.testing.assert_close(value, best @ eta - regularizer.value(best))
    assert float(value) > float(w @ eta - regularizer.value(w))
    regularizer.delta[2] = 0
    assert float(regularizer.conjugate(eta)) == float("inf")


def test_bias_is_free_unless_it_is_asked_for() -> None:
    for spec in (spec_of("classes", 2), spec_of("classes", 2, {"kind": "mlp", "hidden": [3]})):
        predictor = Predictor(spec)
        free = regularizer_of({"kind": "l2", "delta": 2.0}, predictor).delta
        assert torch.equal(free == 0, predictor.bias())
        assert bool((free[~predictor.bias()] == 2).all())
        assert bool((regularizer_of(l2(2.0, True), predictor).delta == 2).all())


def test_deltas_can_differ() -> None:
    predictor = Predictor(spec_of("number", 3))
    assert regularizer_of(l2([1.0, 2.0, 0.0, 4.0], True), predictor).delta.tolist() == [1, 2, 0, 4]
    # a delta for each parameter is meant for each: only one delta for all leaves the biases out
    assert regularizer_of(l2([1.0, 2.0, 0.0, 4.0], False), predictor).delta.tolist() == [1, 2, 0, 4]


def test_penalties_of_columns_are_refused_for_networks_and_images() -> None:
    spec = spec_of("number", 3, {"kind": "mlp", "hidden": [2]})
    image = {**spec_of("number", 3), "input": {"kind": "image", "shape": [1, 1, 3]}}
    for model in (spec, image):
        with pytest.raises(ValueError, match="linear models of vectors and tables"):
            regularizer_of({"kind": "l2", "columns": {"0": 1.0}}, Predictor(model))


@pytest.mark.parametrize(
    ("spec", "words"),
    [
        ({"kind": "l1", "delta": 1.0}, "l1"),
        ({"delta": -1.0}, "negative"),
        ({"delta": float("nan")}, "finite"),
        ({"delta": float("inf")}, "finite"),
        ({"delta": [1.0, 2.0]}, "4 numbers"),
        ({"delta": [[1.0] * 4]}, "4 numbers"),
        ({"delta": "much"}, "delta"),
        ({"delta": None}, "delta"),
        ({"toward": [1.0]}, "4 finite numbers"),
        ({"toward": [1.0, 2.0, 3.0, float("nan")]}, "4 finite numbers"),
        ({"columns": {"3": 1.0}}, "no column '3'"),
        ({"columns": {"0": -1.0}}, "negative"),
        ({"delta": [1.0] * 4, "columns": {"0": 1.0}}, "list"),
    ],
    ids=str,
)
def test_bad_regularizers_are_refused(spec: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        regularizer_of(spec, Predictor(spec_of("number", 3)))
