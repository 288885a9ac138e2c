"""Solvers: they agree with each other, end in an error rather than in NaN, and can be watched and stopped."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from importlib import import_module

import pytest
import torch
from torch import Tensor

from core.kprior import Cost, Examples, SolverError, Training, curvature, train
from core.kprior.model.predictor import Predictor
from core.kprior.model.regularizers import regularizer_of
from core.kprior.objective.objective import Objective
from core.kprior.objective.terms import Term
from core.kprior.solvers.fused_adam import FusedAdam
from core.kprior.solvers.lbfgs import lbfgs
from core.kprior.solvers.learning_rate import Schedule
from core.kprior.solvers.newton import newton
from core.kprior.training.training import Execution
from tests.core.kprior.problems import (
    FAMILIES,
    QUADRATIC,
    TENTH,
    examples_of,
    l2,
    rows,
    spec_of,
)

MLP = {"kind": "mlp", "hidden": [8]}


def objective_of(kind: str, penalize_bias: bool, data: Examples) -> tuple[Objective, Tensor]:
    spec = spec_of(kind, data.x.shape[1], regularizer=l2(0.8, penalize_bias))
    predictor = Predictor(spec)
    w = predictor.initial_weights()
    delta = regularizer_of(spec["regularizer"], predictor).delta
    return Objective(predictor, delta, torch.zeros_like(w), [Term(predictor, data.chunks(64), past=True)]), w


@pytest.mark.parametrize("penalize_bias", [False, True])
@pytest.mark.parametrize("kind", FAMILIES)
def test_lbfgs_and_newton_agree(kind: str, penalize_bias: bool) -> None:
    objective, start = objective_of(kind, penalize_bias, examples_of(kind, 200, 4))
    costs = Cost(), Cost()
    first = newton(objective, start, Training(), costs[0])
    second = lbfgs(objective, start, costs[1])
    assert first.converged
    assert second.converged
    # a softmax's shift is nobody's: compare what is predicted
    x = examples_of(kind, 50, 4, seed=9).x
    f, g = (objective.predictor.outputs(s.w, x) for s in (first, second))
    mean = objective.predictor.family.mean
    torch.testing.assert_close(mean(f), mean(g), rtol=1e-5, atol=1e-6)
    assert 0 < costs[0].data_passes < costs[1].data_passes
    assert costs[0].backward_passes == 200 * costs[0].data_passes


@pytest.mark.parametrize(
    ("penalize_bias", "why"),
    [(True, "With a penalty this small, more steps are needed"), (False, "Some weights have no penalty")],
)
def test_the_error_does_not_blame_a_sufficient_penalty(
    monkeypatch: pytest.MonkeyPatch, penalize_bias: bool, why: str
) -> None:
    monkeypatch.setattr(import_module("core.kprior.solvers.newton"), "MAX_STEPS", 1)
    objective, start = objective_of("binary", penalize_bias, examples_of("binary", 50, 2))
    with pytest.raises(SolverError, match=why):
        newton(objective, start, Training(), Cost())


@pytest.mark.parametrize("scale", [1e3, 1e6, 1e150])
@pytest.mark.parametrize("kind", FAMILIES)
def test_extreme_inputs_give_finite_weights(kind: str, scale: float) -> None:
    data = examples_of(kind, 40, 2)
    data = replace(data, x=data.x * scale)
    state = train(spec_of(kind, 2), [data], policy=TENTH).state
    assert bool(state.w.isfinite().all())
    assert bool(state.gradient.isfinite().all())


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
@pytest.mark.parametrize("where", ["x", "y"])
@pytest.mark.parametrize("architecture", [{"kind": "linear"}, MLP], ids=["linear", "mlp"])
def test_examples_that_are_not_finite_end_in_an_error(
    architecture: dict[str, object], where: str, value: float
) -> None:
    data = examples_of("number", 40, 2)
    spoilt = getattr(data, where).clone()
    spoilt[7, 0] = value
    with pytest.raises(SolverError if where == "x" else ValueError, match="finite"):
        train(spec_of("number", 2, architecture), [replace(data, **{where: spoilt})], training=Training(max_epochs=3))


@pytest.mark.parametrize("kind", ["binary", "classes", "number"])
def test_network_that_is_thrown_far_has_finite_weights(kind: str) -> None:
    training = Training(learning_rate=1e6, max_epochs=20)
    state = train(spec_of(kind, 3, MLP), [examples_of(kind, 60, 3)], training=training).state
    assert bool(state.w.isfinite().all())


@pytest.mark.parametrize("rate", [1e20, 1e30])
@pytest.mark.parametrize("kind", FAMILIES)
def test_diverging_network_ends_in_an_error(kind: str, rate: float) -> None:
    training = Training(learning_rate=rate, max_epochs=20)
    with pytest.raises(SolverError, match="diverged"):
        train(spec_of(kind, 3, MLP), [examples_of(kind, 60, 3)], training=training)


def test_diverging_network_that_is_stopped_by_its_watcher_gives_no_broken_weights() -> None:
    data = examples_of("number", 600, 3)
    seen = []

    def watch(_passes: int, w: Tensor) -> bool:
        seen.append(bool(w.isfinite().all()))
        return not seen[-1]

    training = Training(learning_rate=1e30, batch_size=10, max_epochs=1)
    with pytest.raises(SolverError):
        train(spec_of("number", 3, MLP), [data], training=training, execution=Execution(watch=watch))
    assert not seen[-1]  # the watcher did stop it in the middle of an epoch


@pytest.mark.parametrize("architecture", [{"kind": "linear"}, MLP], ids=["linear", "mlp"])
def test_progress_is_reported_and_can_stop_the_work(architecture: dict[str, object]) -> None:
    data = examples_of("binary", 80, 3)
    told: list[tuple[float, str]] = []
    training = Training(max_epochs=5)
    train(
        spec_of("binary", 3, architecture),
        [data],
        training=training,
        execution=Execution(progress=lambda s, p: told.append((s, p))),
    )
    shares = [share for share, _ in told]
    assert len(shares) >= 2
    assert shares == sorted(shares)
    assert all(0 <= share <= 1 for share in shares)
    assert all(phrase for _, phrase in told)

    class Cancelled(Exception):  # noqa: N818
        pass

    def cancel(_share: float, _phrase: str) -> None:
        raise Cancelled

    with pytest.raises(Cancelled):
        train(spec_of("binary", 3, architecture), [data], training=training, execution=Execution(progress=cancel))


def test_lbfgs_reports_progress(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(curvature, "MAX_FULL_SIZE", 0)
    told: list[float] = []
    data = examples_of("count", 300, 6)
    train(
        spec_of("count", 6, QUADRATIC),
        [data],
        curvature=None,
        execution=Execution(progress=lambda share, _: told.append(share)),
    )
    assert told
    assert told == sorted(told)


def test_watch_sees_weights_and_ends_the_solve() -> None:
    data = examples_of("binary", 100, 3)
    seen: list[int] = []

    def watch(passes: int, w: Tensor) -> bool:
        assert not w.requires_grad
        seen.append(passes)
        return len(seen) == 3

    training = Training(max_epochs=50, batch_size=20)
    result = train(spec_of("binary", 3, MLP), [data], training=training, execution=Execution(watch=watch))
    assert seen == [20, 40, 60]
    assert not result.converged
    assert bool(result.state.w.isfinite().all())


def test_network_that_ran_out_of_epochs_has_not_converged() -> None:
    data = examples_of("binary", 100, 3)
    assert not train(spec_of("binary", 3, MLP), [data], training=Training(max_epochs=1)).converged


def test_schedule_falls_to_zero_and_ends_early_when_nothing_is_gained() -> None:
    patient = Schedule(Training(max_epochs=110, patience=None), steps=20)
    rates = []
    for epoch in range(1000):
        rates.append(patient.learning_rate(epoch))
        if patient.over(epoch, 1.0):
            break
    assert len(rates) == 110
    assert rates[0] == rates[90] == 0.003
    assert 0 < rates[-1] < 0.003 * 0.2
    assert rates == sorted(rates, reverse=True)
    hasty = Schedule(Training(max_epochs=110, patience=3), steps=20)
    ended = next(epoch for epoch in range(1000) if hasty.over(epoch, 1.0))
    assert ended < 10


def test_nothing_to_train_on_is_refused() -> None:
    with pytest.raises(ValueError, match="no examples"):
        train(spec_of("binary", 3), [])
    with pytest.raises(ValueError, match="no examples"):
        train(spec_of("binary", 3), [rows(examples_of("binary", 5, 3), 0, 0)])


def test_fused_adam_takes_the_steps_of_torch() -> None:
    generator, weights = torch.Generator().manual_seed(0), []
    gradients = torch.randn(20, 50, generator=generator)
    for ours in (True, False):
        w = torch.ones(50, requires_grad=True)
        optimizer = FusedAdam(w, 0.01, (0.9, 0.99)) if ours else torch.optim.Adam([w], 0.01, (0.9, 0.99), fused=True)
        for gradient in gradients:
            w.grad = gradient.clone()
            optimizer.step()
        weights.append(w.detach())
    assert torch.equal(*weights)


def test_training_a_network_does_not_load_the_compiler() -> None:
    """Loading it takes a second in every process that trains its first network."""
    code = """
import sys, torch
from core.kprior import Examples, train
from core.kprior.training.training import Predecessor
x = torch.randn(60, 2)
data = [Examples(torch.arange(60), x, (x[:, :1] > 0).double())]
spec = {"input": {"kind": "vector", "dim": 2}, "target": {"kind": "binary"}}
spec |= {"architecture": {"kind": "mlp", "hidden": [3]}, "regularizer": {"kind": "l2", "delta": 1.0}}
state = train(spec, data).state
train(spec, data, predecessor=Predecessor(state, warm=True))
assert "torch._dynamo" not in sys.modules
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
