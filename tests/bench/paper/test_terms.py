"""Terms of the paper's rivals: derivatives, and what their minibatches contain."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from bench.paper.objective.terms import InputMixer, MixedTerm, RemovedTerm, TemperedTerm
from core.kprior import Cost, Predictor
from core.kprior.objective.objective import Objective
from tests.core.kprior.problems import FAMILIES, QUADRATIC, examples_of, spec_of

MLP = {"kind": "mlp", "hidden": [4]}


@pytest.mark.parametrize("architecture", [QUADRATIC, MLP], ids=["linear", "mlp"])
@pytest.mark.parametrize("kind", FAMILIES)
def test_gradient_and_hessian_are_those_of_the_value(kind: str, architecture: dict[str, Any]) -> None:
    predictor = Predictor(spec_of(kind, 3, architecture), seed=1)
    generator = torch.Generator().manual_seed(0)
    w = 0.3 * torch.randn(predictor.size, generator=generator).to(predictor.dtype)
    data = examples_of(kind, 40, 3)
    soft = predictor.family.mean(predictor.outputs(-w, data.x))
    weight = 1 + torch.rand(40, generator=generator).double()
    exact = predictor.linear
    terms = [TemperedTerm(predictor, data, soft, weight, 0.7, 2.0), TemperedTerm(predictor, data, None, weight, 0.3)]
    if not exact:
        terms.append(RemovedTerm(predictor, predictor.encode(data.x[:5]), torch.ones(5, predictor.family.outputs)))
    objective = Objective(predictor, torch.zeros_like(w), torch.zeros_like(w), terms)
    value, gradient, H = objective.evaluate(w, Cost(), hessian=exact)
    f, targets = predictor.outputs(w, data.x), data.y.to(w)
    truth = 0.7 * 4 * (weight * predictor.family.loss(soft, f / 2)).sum()
    truth = truth + 0.3 * (weight * predictor.family.loss(targets, f)).sum() + (0.0 if exact else f[:5].sum())
    assert value == pytest.approx(float(truth), rel=1e-5)
    for _ in range(3):
        v = torch.randn(w.shape, generator=generator).to(w)
        step = (1e-5 if exact else 2e-3) * v / v.norm()
        ahead, after, _ = objective.evaluate(w + step, Cost())
        behind, before, _ = objective.evaluate(w - step, Cost())
        tolerance = 1e-6 if exact else 2e-2
        assert (ahead - behind) / 2 == pytest.approx(float(gradient @ step), rel=tolerance, abs=1e-9 if exact else 2e-3)
        if H is not None:
            torch.testing.assert_close((after - before) / 2, H @ step, rtol=1e-5, atol=1e-8)


@pytest.mark.parametrize(("n", "steps"), [(10, 3), (3, 10), (5, 5)])
def test_batches_of_removed_rows_cover_every_row(n: int, steps: int) -> None:
    z = torch.arange(n)[:, None].float()
    term = RemovedTerm(Predictor(spec_of("number", 1, MLP)), z, z)
    batches = list(term.minibatches(steps, None, torch.Generator().manual_seed(0)))
    assert len(batches) == steps
    assert {int(v) for (rows, _, _), _ in batches for v in rows} == set(range(n))
    assert all(factor * len(rows) == pytest.approx(n) for (rows, _, _), factor in batches)
    assert all(torch.equal(rows, coefficient) for (rows, coefficient, _), _ in batches)


def test_mixed_inputs_represent_the_past_and_their_labels_are_counted() -> None:
    predictor, data, cost = Predictor(spec_of("classes", 3, MLP)), examples_of("classes", 30, 3), Cost()
    w, weight = predictor.initial_weights(), torch.full((30,), 4.0)
    term = MixedTerm(InputMixer(predictor, w), cost, predictor, data, data.y.double(), weight)
    batches = list(term.minibatches(5, 16, torch.Generator().manual_seed(0)))
    assert [len(batch[0]) for batch, _ in batches] == [16] * 5
    assert term.stands_for() == 120
    assert cost.forward_passes == 80


@pytest.mark.parametrize("temperature", [1.0, 3.0])
def test_teacher_labels_what_it_mixes(temperature: float) -> None:
    predictor = Predictor(spec_of("classes", 3, MLP), seed=2)
    w = predictor.initial_weights()
    pool = predictor.encode(examples_of("classes", 30, 3).x)
    weight = torch.arange(30.0)
    generator = torch.Generator().manual_seed(0)
    (mixed, targets, v), factor = InputMixer(predictor, w).mix(pool, weight, 200, temperature, generator)
    assert mixed.shape == (200, 3)
    assert factor == pytest.approx(float(weight.sum()) / 200)
    torch.testing.assert_close(targets, predictor.family.mean(predictor.outputs_of_encoded(w, mixed) / temperature))
    # convex combinations stay within the pool's range; without a covariance there is no noise
    assert bool((mixed >= pool.amin(0) - 1e-6).all())
    assert bool((mixed <= pool.amax(0) + 1e-6).all())
    assert v is None  # rows are drawn by their weight
    again, _ = InputMixer(predictor, w).mix(pool, weight, 200, temperature, generator)
    assert not torch.equal(again[0], mixed)


def test_mixed_inputs_with_noise_keep_the_spread_of_the_past() -> None:
    """a u + (1-a) v has two thirds of the variance; noise adds the missing third."""
    predictor = Predictor(spec_of("classes", 3, MLP))
    pool = predictor.encode(2 * examples_of("classes", 4000, 3).x + 1)
    root = torch.linalg.cholesky(torch.cov(pool.T))
    generator = torch.Generator().manual_seed(0)
    w = predictor.initial_weights()
    (mixed, _, _), _ = InputMixer(predictor, w, root).mix(pool, None, 40_000, 1.0, generator)
    torch.testing.assert_close(torch.cov(mixed.T), torch.cov(pool.T), rtol=0.1, atol=0.1)
    torch.testing.assert_close(mixed.mean(0), pool.mean(0), rtol=0.1, atol=0.1)
