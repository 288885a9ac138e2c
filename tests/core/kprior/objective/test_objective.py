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
from core.kprior.objective.terms import Term
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
            Term(predictor, data.chunks(13), soft, weight),
            Term(predictor, data.chunks(9)),
        ],
        curvature=curvature,
        centre=0.5 * w,
    )
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
