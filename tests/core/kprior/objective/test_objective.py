"""The objective's parts: derivatives, minibatches that cover what they should, and costs that are counted."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from core.kprior import Cost, Examples
from core.kprior.curvature import curvature_for
from core.kprior.model.predictor import Predictor
from core.kprior.objective import terms
from core.kprior.objective.objective import Objective
from core.kprior.objective.terms import InputMixer, Term
from core.kprior.solvers.adam import removed_batches
from tests.core.kprior.problems import FAMILIES, QUADRATIC, examples_of, spec_of

MLP = {"kind": "mlp", "hidden": [4]}


def full_objective(kind: str, architecture: dict[str, Any]) -> tuple[Objective, Tensor]:
    """One with every part in it."""
    predictor = Predictor(spec_of(kind, 3, architecture), seed=1)
    generator = torch.Generator().manual_seed(0)
    w = 0.3 * torch.randn(predictor.size, generator=generator).to(predictor.dtype)
    data = examples_of(kind, 40, 3)
    soft = predictor.family.mean(predictor.outputs(-w, data.x))
    weight = 1 + torch.rand(40, generator=generator).double()
    curvature = curvature_for(predictor, "full")
    curvature.add(predictor, w, data.x)
    objective = Objective(
        predictor,
        delta=torch.linspace(0, 1, predictor.size).to(w),
        linear=torch.linspace(-1, 1, predictor.size).to(w),
        terms=[
            Term(predictor, data.chunks(13), soft, weight, scale=0.7, temperature=2.0),
            Term(predictor, data.chunks(9), scale=0.3),
        ],
        curvature=curvature,
        centre=0.5 * w,
    )
    if not predictor.linear:
        objective.removed = [(predictor.encode(data.x[:5]), torch.ones(5, predictor.family.outputs))]
    return objective, w


@pytest.mark.parametrize("architecture", [QUADRATIC, MLP], ids=["linear", "mlp"])
@pytest.mark.parametrize("kind", FAMILIES)
def test_gradient_and_hessian_are_those_of_the_value(kind: str, architecture: dict[str, Any]) -> None:
    objective, w = full_objective(kind, architecture)
    exact = objective.predictor.linear
    _, gradient, H = objective.evaluate(w, Cost(), hessian=exact)
    generator = torch.Generator().manual_seed(1)
    for _ in range(3):
        v = torch.randn(w.shape, generator=generator).to(w)
        step = (1e-5 if exact else 2e-3) * v / v.norm()
        ahead, after, _ = objective.evaluate(w + step, Cost())
        behind, before, _ = objective.evaluate(w - step, Cost())
        tolerance = 1e-6 if exact else 2e-2
        assert (ahead - behind) / 2 == pytest.approx(float(gradient @ step), rel=tolerance, abs=1e-9 if exact else 2e-3)
        if H is not None:
            torch.testing.assert_close((after - before) / 2, H @ step, rtol=1e-5, atol=1e-8)


def test_costs_count_rows_and_passes_over_the_past() -> None:
    predictor = Predictor(spec_of("binary", 3))
    data = examples_of("binary", 40, 3)
    w = predictor.initial_weights()
    terms = [Term(predictor, data.chunks(13), past=True), Term(predictor, data.chunks(13))]
    cost = Cost()
    objective = Objective(predictor, torch.ones_like(w), torch.zeros_like(w), terms)
    objective.evaluate(w, cost)
    objective.evaluate(w, cost)
    assert (cost.data_passes, cost.backward_passes) == (2, 160)
    total = cost + Cost(1, 2, 3, 4.0)
    assert (total.data_passes, total.backward_passes, total.forward_passes, total.seconds) == (3, 162, 3, 4.0)


def rows_drawn(term: Term, steps: int, size: int | None = None) -> tuple[list[int], float]:
    """The keys (first input) of all rows of all batches, and the weighted number of rows."""
    generator = torch.Generator().manual_seed(0)
    keys, total, batches = [], 0.0, 0
    for (z, targets, _), factor in term.minibatches(steps, size, generator):
        assert torch.equal(z[:, 0], targets[:, 0].to(z))
        keys += z[:, 0].long().tolist()
        total += factor * len(z)
        batches += 1
    return keys, total / batches


def numbered(n: int) -> Examples:
    key = torch.arange(n)
    return Examples(key, torch.stack([key, key], 1).float(), key[:, None].float())


@pytest.mark.parametrize("n", [1, 7, 64, 193])
@pytest.mark.parametrize("steps", [1, 2, 5])
@pytest.mark.parametrize("cached", [True, False], ids=["cached", "streamed"])
def test_minibatches_cover_every_row_once(n: int, steps: int, cached: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if not cached:
        monkeypatch.setattr(terms, "CACHE_BYTES", 0)
    if steps > n:
        steps = n
    term = Term(Predictor(spec_of("number", 2, MLP)), numbered(n).chunks(64))
    keys, mean = rows_drawn(term, steps)
    assert sorted(keys) == list(range(n))
    assert mean == pytest.approx(n)


def test_more_steps_than_rows_repeat_them() -> None:
    term = Term(Predictor(spec_of("number", 2, MLP)), [numbered(3)])
    keys, mean = rows_drawn(term, 7)
    assert len(keys) == 7
    assert set(keys) == {0, 1, 2}
    assert mean == pytest.approx(3)
    assert set(rows_drawn(term, 3)[0]) == {0, 1, 2}


@pytest.mark.parametrize(("n", "steps"), [(10, 3), (3, 10), (5, 5)])
def test_removed_batches_cover_every_row(n: int, steps: int) -> None:
    z = torch.arange(n)[:, None].float()
    batches = list(removed_batches(z, z, steps, torch.Generator().manual_seed(0)))
    assert len(batches) == steps
    assert {int(v) for part, _, _ in batches for v in part} == set(range(n))
    assert all(factor * len(part) == pytest.approx(n) for part, _, factor in batches)
    assert all(torch.equal(part, coefficient) for part, coefficient, _ in batches)


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
