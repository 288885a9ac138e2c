"""Networks that are adapted from their memory alone: accuracy, gradients at the old weights, every switch."""

from __future__ import annotations

from functools import cache
from typing import Any

import pytest
import torch
from sklearn.datasets import load_digits
from torch import Tensor

from bench.paper.objective.adaptation import adapt_by
from bench.paper.objective.build import build_objective, data_gradient
from bench.paper.objective.methods import OURS, Method
from core.kprior import (
    AddData,
    ChangeModel,
    ChangeRegularizer,
    Cost,
    Examples,
    MemoryPolicy,
    Predictor,
    RemoveData,
    Result,
    State,
    Task,
    Training,
    train,
)
from tests.core.kprior.problems import EVERYTHING, FAMILIES, LINEAR, TENTH, examples_of, l2, rows, spec_of, without

MLP: dict[str, Any] = {"kind": "mlp", "hidden": [30]}
TRAINING = Training(max_epochs=60, batch_size=64, learning_rate=0.005)
SHORT = Training(max_epochs=2, batch_size=16)


@cache
def digits() -> tuple[Examples, Examples]:
    """1000 rows to learn from and 400 to judge by; images of 8x8, ten classes."""
    x, y = load_digits(return_X_y=True)
    order = torch.randperm(len(x), generator=torch.Generator().manual_seed(0))
    labels = torch.nn.functional.one_hot(torch.from_numpy(y), 10).float()
    data = Examples(torch.arange(len(x)), torch.from_numpy(x).float()[order] / 16, labels[order])
    return rows(data, 0, 1000), rows(data, 1000, 1400)


def digit_spec(architecture: dict[str, Any], delta: float = 1.0) -> dict[str, Any]:
    return {
        "input": {"kind": "vector", "dim": 64},
        "target": {"kind": "classes", "values": list(range(10))},
        "architecture": architecture,
        "regularizer": l2(delta),
    }


def accuracy(state: State, data: Examples) -> float:
    decided = state.predictor.family.decide(state.predictor.outputs(state.w, data.x))
    return float((decided == data.y.argmax(1)).double().mean())


@cache
def digit_base(kind: str, fraction: float) -> Result:
    """Trained on 800 digits."""
    data, _ = digits()
    policy = MemoryPolicy(fraction=fraction, cap=10**9)
    architecture = MLP if kind == "mlp" else LINEAR
    return train(digit_spec(architecture), rows(data, 0, 800).chunks(200), policy=policy, training=TRAINING)


def change(name: str) -> tuple[list[Task], Examples, dict[str, Any]]:
    """Tasks, what is retained after them, and the spec a retrain would have."""
    data, _ = digits()
    base = rows(data, 0, 800)
    if name == "add":
        return [AddData([rows(data, 800, 1000)])], data, digit_spec(MLP)
    if name == "remove":
        gone = base.take((base.y.argmax(1) == 8) & (base.key % 2 == 0))
        return [RemoveData([gone])], without(base, gone), digit_spec(MLP)
    if name == "regularizer":
        return [ChangeRegularizer(l2(5.0))], base, digit_spec(MLP, 5.0)
    if name == "architecture":
        other = {"kind": "mlp", "hidden": [20, 20]}
        return [ChangeModel(other)], base, digit_spec(other)
    return [ChangeModel(LINEAR)], base, digit_spec(LINEAR)


@pytest.mark.parametrize("fraction", [1.0, 0.1])
@pytest.mark.parametrize("name", ["add", "remove", "regularizer", "architecture", "linear"])
def test_accuracy_is_near_that_of_a_retrain(name: str, fraction: float) -> None:
    tasks, retained, spec = change(name)
    _, holdout = digits()
    base = digit_base("mlp", fraction)
    adapted = adapt_by(OURS, base.state, base.memory, tasks, training=TRAINING, policy=MemoryPolicy(fraction=fraction))
    retrained = train(spec, retained.chunks(200), training=TRAINING)
    assert adapted.state.count == len(retained)
    assert accuracy(retrained.state, holdout) > 0.9
    assert accuracy(adapted.state, holdout) > accuracy(retrained.state, holdout) - (0.03 if fraction == 1 else 0.06)


def test_linear_model_becomes_a_network() -> None:
    _, holdout = digits()
    base = digit_base("linear", 1.0)
    adapted = adapt_by(OURS, base.state, base.memory, [ChangeModel(MLP)], training=TRAINING, policy=TENTH)
    assert not adapted.state.predictor.linear
    assert adapted.state.w.dtype == torch.float32
    assert accuracy(adapted.state, holdout) > accuracy(base.state, holdout) - 0.03


@pytest.mark.parametrize("kind", FAMILIES)
@pytest.mark.parametrize(("old", "new"), [(LINEAR, MLP), (MLP, LINEAR)], ids=["linear_to_mlp", "mlp_to_linear"])
def test_every_family_changes_between_linear_and_network(kind: str, old: dict[str, Any], new: dict[str, Any]) -> None:
    data = examples_of(kind, 120, 3)
    base = train(spec_of(kind, 3, old), data.chunks(50), policy=TENTH, training=SHORT)
    adapted = adapt_by(OURS, base.state, base.memory, [ChangeModel(new)], policy=TENTH, training=SHORT)
    assert bool(adapted.state.w.isfinite().all())
    assert adapted.state.predictor.linear == (new is LINEAR)
    again = adapt_by(OURS, adapted.state, adapted.memory, [ChangeRegularizer(l2(2.0))], policy=TENTH, training=SHORT)
    assert again.state.count == 120


@pytest.mark.parametrize("curvature", [None, "full", "kronecker", "diagonal"])
@pytest.mark.parametrize("kind", FAMILIES)
def test_gradient_at_the_old_weights_is_known_exactly(kind: str, curvature: str | None) -> None:
    """K'(w*) = g* + sum_added J'(h - y) + sum_removed J'(y - h), whatever memory and curvature there are."""
    data = examples_of(kind, 120, 3)
    base, new, gone = rows(data, 0, 100), rows(data, 100, 120), rows(data, 0, 9)
    trained = train(
        spec_of(kind, 3, {"kind": "mlp", "hidden": [6]}), [base], policy=TENTH, training=SHORT, curvature=curvature
    )
    state = trained.state
    tasks = [AddData([new]), RemoveData([gone])]
    problem = build_objective(state, trained.memory, tasks, OURS, Cost())
    _, gradient, _ = problem.objective.evaluate(state.w, Cost())
    predictor = state.predictor
    truth = state.gradient + data_gradient(predictor, state.w, new) - data_gradient(predictor, state.w, gone)
    torch.testing.assert_close(gradient, truth, rtol=1e-3, atol=1e-3 * float(truth.abs().max()))
    retained = data_gradient(predictor, state.w, without(data, gone)) + state.regularizer.gradient(state.w)
    torch.testing.assert_close(truth, retained, rtol=1e-3, atol=1e-3 * float(truth.abs().max()))


def test_full_memory_gradient_is_that_of_the_retained_objective_near_the_old_weights() -> None:
    """To first order in the step: labels and soft labels differ by what g* holds, but for how f itself bends."""
    data = examples_of("classes", 120, 3)
    trained = train(spec_of("classes", 3, {"kind": "mlp", "hidden": [6]}), [data], policy=EVERYTHING, training=TRAINING)
    state = trained.state
    problem = build_objective(state, trained.memory, [], OURS, Cost())
    step = torch.randn(state.w.shape, generator=torch.Generator().manual_seed(0))
    errors = []
    for size in (0.1, 0.01):
        w = state.w + size * step / step.norm()
        _, gradient, _ = problem.objective.evaluate(w, Cost())
        truth = data_gradient(state.predictor, w, data) + state.regularizer.gradient(w)
        errors.append(float((gradient - truth).norm()))
    assert errors[1] < 0.3 * errors[0]


@pytest.mark.parametrize(
    "method",
    [
        Method(mixing=False),
        Method(temperature=3.0),
        Method(labels=0.5),
        Method(labels=1.0),
        Method(temperature=2.0, labels=0.3, mixing=False),
        Method(anchor=False),
        Method(gradient=False),
        Method(memory=False),
        Method(tau=0.5),
    ],
    ids=str,
)
@pytest.mark.parametrize("curvature", [None, "kronecker", "diagonal"])
def test_every_switch_runs_on_every_task(method: Method, curvature: str | None) -> None:
    data = examples_of("classes", 100, 3)
    base = train(
        spec_of("classes", 3, {"kind": "mlp", "hidden": [5]}),
        [rows(data, 0, 80)],
        policy=TENTH,
        training=SHORT,
        curvature=curvature,
    )
    tasks: list[Task] = [AddData([rows(data, 80, 100)]), RemoveData([rows(data, 0, 5)]), ChangeRegularizer(l2(2.0))]
    for extra in ([], [ChangeModel({"kind": "mlp", "hidden": [4]})]):
        adapted = adapt_by(method, base.state, base.memory, tasks + extra, training=SHORT, policy=TENTH)
        assert bool(adapted.state.w.isfinite().all())
        assert bool(adapted.state.gradient.isfinite().all())
        assert adapted.state.count == 95
        State.from_bytes(adapted.state.to_bytes())


@pytest.mark.parametrize("curvature", ["kronecker", "diagonal", "full"])
def test_curvature_is_carried_along_a_chain(curvature: str) -> None:
    data = examples_of("binary", 140, 3)
    spec = spec_of("binary", 3, {"kind": "mlp", "hidden": [5]})
    result = train(spec, [rows(data, 0, 100)], policy=TENTH, training=SHORT, curvature=curvature)
    for step in range(3):
        tasks = [
            AddData([rows(data, 100 + 10 * step, 110 + 10 * step)]),
            RemoveData([rows(data, 5 * step, 5 * step + 5)]),
        ]
        result = adapt_by(OURS, result.state, result.memory, tasks, training=SHORT, policy=TENTH)
        assert result.state.curvature is not None
        assert result.state.curvature.kind == curvature
        values = torch.linalg.eigvalsh(result.state.curvature.dense(result.state.predictor.size).double())
        assert float(values[0]) >= -1e-4 * float(values[-1])
    # the trace keeps to what a fresh pass would find, within what moving weights explain
    fresh = train(spec, [rows(data, 15, 130)], policy=TENTH, training=SHORT, curvature=curvature).state.curvature
    assert fresh is not None
    ours, theirs = (
        float(c.dense(result.state.predictor.size).diagonal().sum()) for c in (result.state.curvature, fresh)
    )
    assert 0.3 * theirs < ours < 3 * theirs


def test_convolutional_networks_change_into_each_other() -> None:
    generator = torch.Generator().manual_seed(0)
    x = (255 * torch.rand(24, 3, 32, 32, generator=generator)).to(torch.uint8)
    y = (x.float().mean((1, 2, 3)) > 127).float()[:, None]
    data = Examples(torch.arange(24), x, y)
    spec = {
        "input": {"kind": "image", "shape": [3, 32, 32]},
        "target": {"kind": "binary"},
        "architecture": {"kind": "cifarnet"},
        "regularizer": l2(),
    }
    quick = Training(max_epochs=1, batch_size=12)
    base = train(spec, data.chunks(12), training=quick, policy=MemoryPolicy(fraction=0.5))
    tasks = [ChangeModel({"kind": "lenet5"}), RemoveData([rows(data, 0, 2)])]
    adapted = adapt_by(OURS, base.state, base.memory, tasks, training=quick, policy=MemoryPolicy(fraction=0.5))
    assert adapted.state.predictor.spec["architecture"] == {"kind": "lenet5"}
    assert bool(adapted.state.w.isfinite().all())
    assert State.from_bytes(adapted.state.to_bytes()).count == 22


def test_cold_start_forgets_the_old_weights() -> None:
    data = examples_of("binary", 120, 3)
    spec = spec_of("binary", 3, MLP)
    trained = train(spec, [rows(data, 0, 100)], training=Training(max_epochs=30))
    starts: list[Tensor] = []

    def first(_passes: int, w: Tensor) -> bool:
        starts.append(w.clone())
        return True

    def state_after(warm: bool) -> State:
        options = {"training": Training(learning_rate=1e-9), "warm_start": warm, "watch": first}
        tasks = [AddData([rows(data, 100, 120)])]
        return adapt_by(OURS, trained.state, trained.memory, tasks, **options).state

    assert float((state_after(True).w - trained.state.w).abs().max()) < 1e-6
    assert float((state_after(False).w - Predictor(spec).initial_weights()).abs().max()) < 1e-6
