"""The paper's K-prior and its rivals as settings of one objective: each is what its name says."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from bench.paper.objective.adaptation import adapt_by
from bench.paper.objective.build import build_objective
from bench.paper.objective.methods import MODES, PAPER, REPLAY, WEIGHT_PRIOR, Method, Weighting, distillation
from core.kprior import (
    AddData,
    ChangeRegularizer,
    Cost,
    Examples,
    MemoryPolicy,
    RemoveData,
    Result,
    Select,
    train,
)
from core.kprior.data.examples import concatenate
from tests.core.kprior import oracles
from tests.core.kprior.problems import (
    EVERYTHING,
    FAMILIES,
    KINKED,
    LOSSES,
    TENTH,
    examples_of,
    l2,
    relative_distance,
    rows,
    spec_of,
    without,
)

DATA = {kind: examples_of(kind, 140, 3) for kind in LOSSES}


def base_of(kind: str, policy: MemoryPolicy) -> Result:
    return train(spec_of(kind, 3), rows(DATA[kind], 0, 120).chunks(50), policy=policy)


def gradient_of(base: Result, method: Method, w: torch.Tensor, **options: Any) -> torch.Tensor:
    tasks = [AddData([options["new"]])] if "new" in options else []
    problem = build_objective(base.state, base.memory, tasks, method, Cost())
    return problem.objective.evaluate(w, Cost())[1]


@pytest.mark.parametrize("kind", LOSSES)
def test_papers_prior_with_all_in_memory_is_exact_from_a_converged_base(kind: str) -> None:
    """Theorem 1: the gradients of K and of the retained objective are the same."""
    base = base_of(kind, EVERYTHING)
    gone = rows(DATA[kind], 0, 15)
    tasks = [AddData([rows(DATA[kind], 120, 140)]), RemoveData([gone]), ChangeRegularizer(l2(0.5))]
    adapted = adapt_by(PAPER, base.state, base.memory, tasks, policy=EVERYTHING)
    truth = oracles.retrain(spec_of(kind, 3, regularizer=l2(0.5)), without(DATA[kind], gone))
    assert relative_distance(adapted.state, truth) < 1e-6


@pytest.mark.parametrize("kind", FAMILIES)
def test_papers_prior_is_its_formula(kind: str) -> None:
    """Eq. 8: sum_M l(h*, f) + delta/2 |w - w*|^2, memory by the largest h'."""
    base = base_of(kind, MemoryPolicy(fraction=0.2, select=Select.CURVATURE))
    state = base.state
    predictor, family = state.predictor, state.predictor.family
    w = (state.w + 0.3).clone().requires_grad_()
    soft = family.mean(predictor.outputs(state.w, base.memory.x))
    prior = (state.regularizer.delta * (w - state.w) ** 2).sum() / 2
    value = family.loss(soft, predictor.outputs(w, base.memory.x)).sum() + prior
    (truth,) = torch.autograd.grad(value, w)
    torch.testing.assert_close(gradient_of(base, PAPER, w.detach()), truth)


@pytest.mark.parametrize("kind", KINKED)
def test_the_papers_prior_of_a_kinked_loss_uses_the_divergence_of_each_rows_loss(kind: str) -> None:
    """sum_M l(y, f) - l(y, f*) - l'(y, f*) (f - f*) + delta/2 |w - w*|^2, memory by the largest curvature."""
    base = base_of(kind, MemoryPolicy(fraction=0.2, select=Select.CURVATURE))
    state, memory = base.state, base.memory
    predictor, family = state.predictor, state.predictor.family
    f_star = predictor.outputs(state.w, memory.x).requires_grad_()
    (slope,) = torch.autograd.grad(family.loss(memory.y, f_star).sum(), f_star)
    w = (state.w + 0.3).clone().requires_grad_()
    f = predictor.outputs(w, memory.x)
    prior = (state.regularizer.delta * (w - state.w) ** 2).sum() / 2
    value = family.loss(memory.y, f).sum() - (slope * f).sum() + prior
    (truth,) = torch.autograd.grad(value, w)
    torch.testing.assert_close(gradient_of(base, PAPER, w.detach()), truth)


@pytest.mark.parametrize("kind", LOSSES)
def test_replay_is_a_fit_to_memory_and_new_examples(kind: str) -> None:
    base = base_of(kind, MemoryPolicy(fraction=0.4))
    new = rows(DATA[kind], 120, 140)
    adapted = adapt_by(REPLAY, base.state, base.memory, [AddData([new])])
    truth = oracles.retrain(spec_of(kind, 3), concatenate([base.memory, new]))
    assert relative_distance(adapted.state, truth) < 1e-6


@pytest.mark.parametrize("kind", LOSSES)
def test_weight_prior_is_a_quadratic_around_the_old_weights(kind: str) -> None:
    """Its minimum with nothing new but a penalty is one linear solve away (and needs no memory)."""
    base = base_of(kind, TENTH)
    state = base.state
    adapted = adapt_by(WEIGHT_PRIOR, state, base.memory, [ChangeRegularizer(l2(30.0, True))])
    assert state.curvature is not None
    G = state.curvature.dense(state.predictor.size)
    delta = torch.full_like(state.w, 30.0)
    right = G @ state.w + state.regularizer.delta * state.w - state.gradient
    truth = torch.linalg.solve(G + torch.diag(delta), right)
    torch.testing.assert_close(adapted.state.w, truth, rtol=1e-6, atol=1e-9)


def test_weight_prior_is_exact_for_numbers() -> None:
    base = base_of("number", TENTH)
    new = rows(DATA["number"], 120, 140)
    adapted = adapt_by(WEIGHT_PRIOR, base.state, base.memory, [AddData([new])])
    assert relative_distance(adapted.state, oracles.retrain(spec_of("number", 3), DATA["number"])) < 1e-8


@pytest.mark.parametrize("temperature", [1.0, 4.0])
@pytest.mark.parametrize("share", [0.0, 0.3, 1.0])
def test_distillation_is_its_formula(temperature: float, share: float) -> None:
    """Eq. 27: (1 - lambda) T^2 sum v l(h(f*/T), f/T) + lambda sum v l(y, f), and the plain regularizer."""
    base = base_of("classes", TENTH)
    state, memory = base.state, base.memory
    predictor, family = state.predictor, state.predictor.family
    w = (0.5 * state.w + 0.1).clone().requires_grad_()
    soft = family.mean(predictor.outputs(state.w, memory.x) / temperature)
    f = predictor.outputs(w, memory.x)
    v = state.memory.weight
    value = (1 - share) * temperature**2 * (v * family.loss(soft, f / temperature)).sum()
    value = value + share * (v * family.loss(memory.y, f)).sum() + state.regularizer.value(w)
    (truth,) = torch.autograd.grad(value, w)
    torch.testing.assert_close(gradient_of(base, distillation(temperature, share), w.detach()), truth)


@pytest.mark.parametrize("kind", LOSSES)
def test_ours_is_nearer_to_the_retrain_than_its_rivals(kind: str) -> None:
    """A tenth of the past, and a removal that is all on one side."""
    data = examples_of(kind, 600, 3, seed=4)
    gone = data.take(data.x[:, 0] > 0.8)
    truth = oracles.retrain(spec_of(kind, 3), without(data, gone))

    def error(method: Method, select: Select = Select.AUTO) -> float:
        policy = MemoryPolicy(fraction=0.1, select=select)
        base = train(spec_of(kind, 3), data.chunks(100), policy=policy)
        return relative_distance(adapt_by(method, base.state, base.memory, [RemoveData([gone])]).state, truth)

    ours = error(MODES["ours"])
    assert ours < 0.05
    assert ours < error(PAPER, Select.CURVATURE)
    assert ours < error(REPLAY, Select.RANDOM)


@pytest.mark.parametrize("weighting", list(Weighting))
def test_every_rule_of_weights_runs_and_is_exact_with_all_in_memory(weighting: Weighting) -> None:
    base = base_of("binary", EVERYTHING)
    new = rows(DATA["binary"], 120, 140)
    adapted = adapt_by(Method(weighting=weighting), base.state, base.memory, [AddData([new])], policy=EVERYTHING)
    assert relative_distance(adapted.state, oracles.retrain(spec_of("binary", 3), DATA["binary"])) < 1e-6


def test_balanced_weights_leave_a_positive_rest() -> None:
    base = base_of("classes", TENTH)
    problem = build_objective(base.state, base.memory, [], Method(weighting=Weighting.BALANCED), Cost())
    assert problem.objective.curvature is not None
    rest = problem.objective.curvature.dense(base.state.predictor.size)
    values = torch.linalg.eigvalsh(rest)
    assert float(values[0]) >= -1e-8 * float(values[-1])
    assert bool((problem.memory_weight <= problem.importance + 1e-12).all())


def test_balanced_weights_need_a_full_curvature() -> None:
    data: Examples = DATA["binary"]
    base = train(spec_of("binary", 3), [data], policy=TENTH, curvature=None)
    with pytest.raises(ValueError, match="full curvature"):
        adapt_by(Method(weighting=Weighting.BALANCED), base.state, base.memory, [])


@pytest.mark.parametrize(
    "options", [{"labels": -0.1}, {"labels": 1.1}, {"temperature": 0.0}, {"temperature": -1.0}, {"tau": -1.0}]
)
def test_switches_out_of_range_are_refused(options: dict[str, float]) -> None:
    with pytest.raises(ValueError, match="labels"):
        Method(**options)  # type: ignore[arg-type]


def test_tau_scales_the_weight_space_term() -> None:
    base = base_of("number", TENTH)
    w = base.state.w + 1
    plain, none = (gradient_of(base, Method(tau=tau), w) for tau in (1.0, 0.0))
    torch.testing.assert_close(plain - none, base.state.regularizer.delta * (w - base.state.w))
