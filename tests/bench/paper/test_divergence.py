"""The divergence between two regularizers, in closed form and in general."""

from __future__ import annotations

import pytest
import torch

from bench.paper.divergence import bregman, conjugate
from core.kprior.model.regularizers import L2

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
    value = conjugate(regularizer, eta)
    torch.testing.assert_close(value, best @ eta - regularizer.value(best))
    assert float(value) > float(w @ eta - regularizer.value(w))
    regularizer.delta[2] = 0
    assert float(conjugate(regularizer, eta)) == float("inf")
