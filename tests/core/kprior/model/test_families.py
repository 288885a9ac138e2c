"""Families against autograd, at their limits, and far outside of what a model should ever say."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from core.kprior.model.families import Bernoulli, Categorical, Family, Gaussian, Poisson
from core.kprior.model.losses import family_of
from tests.core.kprior.problems import FAMILIES, target_of

ALL = [Bernoulli(), Categorical(2), Categorical(4), Gaussian(), Poisson()]
each = pytest.mark.parametrize("family", ALL, ids=lambda family: f"{family.name}{family.outputs}")


def some_outputs(family: Family, n: int = 40, size: float = 3.0, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return size * torch.randn(n, family.outputs, generator=generator, dtype=torch.float64)


def soft_labels(family: Family, n: int = 40) -> Tensor:
    """Means of other outputs: labels as a memory holds them."""
    return family.mean(some_outputs(family, n, 1.0, seed=1))


@each
def test_mean_is_the_gradient_of_the_loss_plus_the_label(family: Family) -> None:
    f, y = some_outputs(family).requires_grad_(), soft_labels(family)
    (gradient,) = torch.autograd.grad(family.loss(y, f).sum(), f)
    torch.testing.assert_close(gradient + y, family.mean(f.detach()))


@each
@pytest.mark.parametrize("size", [3.0, 300.0])
def test_terms_are_mean_residual_and_loss(family: Family, size: float) -> None:
    f, y = some_outputs(family, size=1.0 if family.name == "poisson" else size), soft_labels(family)
    for outputs in (f, f.T.contiguous().T):  # both layouts in memory
        mean, residual, loss = family.terms(y, outputs)
        torch.testing.assert_close(mean, family.mean(f))
        torch.testing.assert_close(residual, family.residual(y, f), rtol=1e-12, atol=1e-12)
        torch.testing.assert_close(loss, family.loss(y, f))


@each
def test_hessian_is_the_second_derivative_of_the_loss(family: Family) -> None:
    y = soft_labels(family)
    for f, label in zip(some_outputs(family), y, strict=True):

        def loss(f: Tensor, label: Tensor = label) -> Tensor:
            return family.loss(label[None], f[None])[0]

        truth = torch.autograd.functional.hessian(loss, f)
        torch.testing.assert_close(family.hessian(f[None])[0], truth, rtol=1e-7, atol=1e-10)
        torch.testing.assert_close(family.variance(f[None])[0], truth.diagonal(), rtol=1e-7, atol=1e-10)


@each
def test_hessian_root_squared_is_the_hessian(family: Family) -> None:
    f = some_outputs(family, size=5.0)
    root = family.hessian_root(f)
    torch.testing.assert_close(root @ root.transpose(1, 2), family.hessian(f))


@each
def test_curvature_changes_no_faster_than_self_concordance_allows(family: Family) -> None:
    """|A'''[u, u, v]| <= c spread(v) A''[u, u], on which the certificate rests."""
    generator = torch.Generator().manual_seed(2)
    for f in some_outputs(family, 60):
        u, v = torch.randn(2, family.outputs, generator=generator, dtype=torch.float64)

        def along(t: Tensor, f: Tensor = f, u: Tensor = u, v: Tensor = v) -> Tensor:
            return u @ family.hessian((f + t * v)[None])[0] @ u

        zero = torch.zeros((), dtype=torch.float64)
        third = torch.autograd.functional.jacobian(along, zero)
        limit = family.self_concordance * family.spread(v[None])[0] * along(zero)
        assert abs(float(third)) <= float(limit) * (1 + 1e-9) + 1e-12


@each
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_extreme_outputs_stay_finite(family: Family, dtype: torch.dtype) -> None:
    top = 80.0 if family.name == "poisson" else 1e4
    f = torch.tensor([-1e4, -top, -40.0, 0.0, 40.0, top], dtype=dtype)[:, None].repeat(1, family.outputs)
    if family.outputs > 1:
        f = torch.cat([f, f * torch.linspace(-1, 1, family.outputs, dtype=dtype)])
    y = torch.full_like(f, 1 / family.outputs)
    hard = torch.nn.functional.one_hot(torch.zeros(len(f), dtype=torch.long), family.outputs).to(dtype)
    f.requires_grad_()
    for labels in (y, hard, 1 - hard if family.outputs == 1 else hard):
        loss = family.loss(labels, f)
        (gradient,) = torch.autograd.grad(loss.sum(), f)
        for value in (loss, gradient):
            assert bool(value.isfinite().all())
    with torch.no_grad():
        for value in (family.mean(f), family.variance(f), family.hessian(f), family.hessian_root(f)):
            assert bool(value.isfinite().all())
            assert value.dtype == dtype
        assert bool((family.variance(f) >= 0).all())


def test_sure_predictions_keep_their_digits() -> None:
    """At f = 40 the wrong class has e^-40: 1 - h(f) would say zero."""
    f = torch.tensor([[40.0]], dtype=torch.float64)
    tiny = torch.exp(-f[0])
    torch.testing.assert_close(Bernoulli().loss(torch.ones(1, 1), f), tiny)
    torch.testing.assert_close(Bernoulli().variance(f)[0], tiny)
    two = torch.cat([f, torch.zeros_like(f)], 1)
    torch.testing.assert_close(Categorical(2).variance(two)[0], tiny.repeat(2))


@each
def test_loss_of_a_soft_label_is_least_at_the_output_it_came_from(family: Family) -> None:
    f = some_outputs(family, size=2.0)
    y = family.mean(f)
    away = some_outputs(family, seed=3)
    assert bool((family.loss(y, f) <= family.loss(y, f + away) + 1e-12).all())


def test_two_classes_are_a_logit() -> None:
    f = some_outputs(Categorical(2))
    logit = f[:, 1:] - f[:, :1]
    y = soft_labels(Categorical(2))
    torch.testing.assert_close(Categorical(2).loss(y, f), Bernoulli().loss(y[:, 1:], logit))
    torch.testing.assert_close(Categorical(2).mean(f)[:, 1:], Bernoulli().mean(logit))
    assert torch.equal(Categorical(2).decide(f), Bernoulli().decide(logit))


@each
def test_secant_is_the_mean_slope_between_an_output_and_its_shrunk_self(family: Family) -> None:
    f = some_outputs(family)
    centred = f - f.mean(1, keepdim=True) if family.outputs > 1 else f
    steps = torch.linspace(1 / 3, 1, 2001, dtype=torch.float64)
    slopes = torch.stack(
        [torch.einsum("nk,nkl,nl->n", centred, family.hessian(s * f), centred) / (centred**2).sum(1) for s in steps]
    )
    truth = torch.trapezoid(slopes, steps, dim=0) / (2 / 3)
    torch.testing.assert_close(family.secant(f, 1 / 3), truth, rtol=1e-5, atol=1e-8)


@each
def test_secant_has_no_jump_where_outputs_vanish(family: Family) -> None:
    direction = some_outputs(family, 5, 1.0)
    at_zero = family.secant(0 * direction, 1 / 3)
    for size in (1e-6, 1e-5, 1e-4, 1e-3, 1e-2):
        torch.testing.assert_close(family.secant(size * direction, 1 / 3), at_zero, rtol=2e-2, atol=0)


def test_targets_name_their_family() -> None:
    names = [family_of(target_of(kind)).name for kind in FAMILIES]
    assert names == ["bernoulli", "categorical", "gaussian", "poisson"]


@pytest.mark.parametrize(
    ("target", "words"),
    [
        ({"kind": "ordinal"}, "ordinal"),
        ({}, "None"),
        ({"kind": "classes"}, "values"),
        ({"kind": "classes", "values": [1]}, "two"),
    ],
)
def test_unknown_targets_are_refused(target: dict[str, object], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        family_of(target)


@pytest.mark.parametrize(
    "loss", [{"kind": "squared_hinge"}, {"kind": "huber"}, {"kind": "huber", "threshold": 0.5}], ids=str
)
def test_a_kinked_loss_is_a_quadratic_within_its_slack(loss: Any) -> None:
    """And its slope and curvature are those of the loss."""
    target: Any = {"kind": "binary"} if loss["kind"] == "squared_hinge" else {"kind": "number"}
    family = family_of(target, loss)
    generator = torch.Generator().manual_seed(0)
    f = 2 * torch.randn(200, 1, generator=generator, dtype=torch.float64)
    y = (torch.rand(200, 1, generator=generator) < 0.5).double()
    at = f.clone().requires_grad_()
    (slope,) = torch.autograd.grad(family.loss(y, at).sum(), at)
    torch.testing.assert_close(family.residual(y, f), slope)
    for share in (-0.999, 0.999):
        step = share * family.slack(y, f).clamp(max=10.0)
        quadratic = (slope * step + family.curvature(y, f) * step**2 / 2)[:, 0]
        torch.testing.assert_close(family.loss(y, f + step) - family.loss(y, f), quadratic)


@pytest.mark.parametrize(
    ("target", "loss"),
    [("count", "huber"), ("number", "squared_hinge"), ("classes", "squared_hinge"), ("classes", "squared")],
)
def test_a_loss_that_is_none_of_its_target_is_refused(target: str, loss: Any) -> None:
    with pytest.raises(ValueError, match=f"The loss '{loss}' does not fit a target of kind '{target}'"):
        family_of(target_of(target), {"kind": loss})
