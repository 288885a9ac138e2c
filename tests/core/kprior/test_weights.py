"""Weights of rows and of classes: a row counts as often as its weight says, wherever rows are added up.

That full memory is exact with weights is in `adaptation/test_exact.py`, that bounds cover in `certificate/`.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

from core.kprior import (
    AddData,
    ChangeRegularizer,
    Examples,
    MemoryPolicy,
    RemoveData,
    Training,
    adapt,
    certify,
    curvature,
    draw_from,
    refine,
    refine_for_erasure,
    train,
)
from core.kprior.data.examples import concatenate
from core.kprior.passes.partitioned import accumulate
from core.kprior.passes.second_order import CurvatureSum, SurrogateSum
from core.kprior.training.training import Predecessor
from tests.core.kprior import oracles
from tests.core.kprior.problems import (
    EVERYTHING,
    LOSSES,
    QUADRATIC,
    TENTH,
    ShardedExamples,
    distance,
    examples_of,
    l2,
    relative_distance,
    rows,
    spec_of,
    with_weights,
    without,
)

TABLE: dict[str, Any] = {
    "kind": "table",
    "columns": [{"name": "a", "type": "number"}, {"name": "b", "type": "number"}],
}
MLP: dict[str, Any] = {"kind": "mlp", "hidden": [8]}


def twice(data: Examples, some: torch.Tensor) -> Examples:
    """The rows, some of them a second time."""
    again = data.take(some)
    return concatenate([data, replace(again, key=again.key + 10**6)])


@pytest.mark.parametrize("given", ["vector", "table"])
@pytest.mark.parametrize("kind", LOSSES)
def test_a_weight_of_two_is_the_row_twice(kind: str, given: str) -> None:
    data = examples_of(kind, 80, 2)
    some = torch.arange(0, 80, 3)
    weight = torch.ones(80, dtype=torch.float64)
    weight[some] = 2
    spec = spec_of(kind, 2) if given == "vector" else {**spec_of(kind, 2), "input": TABLE}
    one = train(spec, replace(data, weight=weight).chunks(17)).state
    other = train(spec, twice(data, some).chunks(17)).state
    assert relative_distance(one, other.w) <= 1e-9
    assert (one.count, other.count) == (80, 107)


@pytest.mark.parametrize("kind", ["binary", "classes"])
def test_a_class_counts_as_rows_of_that_weight(kind: str) -> None:
    data = examples_of(kind, 120, 3)
    code = data.y.argmax(1) if kind == "classes" else data.y[:, 0].long()
    spec = spec_of(kind, 3)
    one = train({**spec, "class_weight": {"1": 4.0, "0": 0.5}}, [data]).state
    weight = torch.tensor([0.5, 4.0, 1.0], dtype=torch.float64)[code]
    assert relative_distance(one, train(spec, [replace(data, weight=weight)]).state.w) <= 1e-9
    assert one.spec["class_weight"] == {"1": 4.0, "0": 0.5}


@pytest.mark.parametrize("fraction", [0.05, 1.0])
@pytest.mark.parametrize("kind", LOSSES)
def test_a_chain_of_weighted_changes_ends_within_its_bound_of_scikit_learn(kind: str, fraction: float) -> None:
    data, policy = with_weights(examples_of(kind, 400, 4), most=20), MemoryPolicy(fraction=fraction)
    spec = spec_of(kind, 4)
    if kind in ("binary", "classes"):
        spec["class_weight"] = {"1": 3.0}
    found, held = train(spec, rows(data, 0, 250).chunks(64), policy=policy), rows(data, 0, 250)
    for step in range(5):
        new = rows(data, 250 + 30 * step, 280 + 30 * step)
        gone = held.take(held.x[:, step % 4].topk(15).indices)
        delta = l2(1.0 + step)
        tasks = [AddData([new]), RemoveData([gone]), ChangeRegularizer(delta)]
        found = adapt(found.state, found.memory, tasks, policy=policy)
        held = without(concatenate([held, new]), gone)
        truth = oracles.retrain({**spec, "regularizer": delta}, held)
        assert found.certificate is not None
        assert found.certificate.bound is not None
        assert distance(found.state, truth) <= found.certificate.bound + 1e-9
    assert relative_distance(found.state, truth) <= (1e-6 if fraction == 1 else 0.1)
    refined = refine(found.state, found.memory, held.chunks(50), tolerance=1e-8, rounds=10)
    assert relative_distance(refined.state, truth) <= 1e-6


@pytest.mark.parametrize("kind", LOSSES)
def test_nothing_of_a_weighted_row_is_left_after_an_erasure(kind: str) -> None:
    spec, everything = spec_of(kind, 4), with_weights(examples_of(kind, 300, 4))
    others, person = rows(everything, 3, 300), rows(everything, 0, 3)
    states = set()
    for weight in (0.2, 1.0, 5.0):
        heavy = replace(person, weight=torch.full((3,), weight, dtype=torch.float64))
        trained = train(spec, concatenate([heavy, others]).chunks(64), policy=TENTH)
        adapted = adapt(trained.state, trained.memory, [RemoveData([heavy])], policy=TENTH)
        found = refine_for_erasure(adapted.state, adapted.memory, others.chunks(64), tolerance=0.01, policy=TENTH)
        assert found is not None
        assert relative_distance(found.state, oracles.retrain(spec, others)) <= 0.01
        states.add(found.state.to_bytes())
    assert len(states) == 1


@pytest.mark.parametrize("penalize_bias", [False, True])
@pytest.mark.parametrize("kind", LOSSES)
def test_wide_models_count_weights_too(kind: str, penalize_bias: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(curvature, "MAX_FULL_SIZE", 0)
    data = with_weights(examples_of(kind, 400, 5))
    data = replace(data, x=data.x.float())
    spec = spec_of(kind, 5, regularizer=l2(1.0, penalize_bias))
    if kind in ("binary", "classes"):
        spec["class_weight"] = {"1": 3.0}
    base, new, gone = rows(data, 0, 350), rows(data, 350, 400), rows(data, 0, 20)
    trained = train(spec, base.chunks(64))
    assert trained.certificate is not None
    assert trained.certificate.bound is not None
    assert distance(trained.state, oracles.retrain(spec, base)) <= trained.certificate.bound
    adapted, held = adapt(trained.state, trained.memory, [AddData([new]), RemoveData([gone])]), without(data, gone)
    truth = oracles.retrain(spec, held)
    measured = certify(adapted.state, adapted.memory, held.chunks(64))
    assert measured.certificate.bound is not None
    assert distance(measured.state, truth) <= measured.certificate.bound
    refined = refine(adapted.state, adapted.memory, held.chunks(64), tolerance=1e-3)
    assert relative_distance(refined.state, truth) <= 1e-3


@pytest.mark.parametrize("backend", ["full", "blocks", "kronecker", "diagonal"])
def test_curvature_of_a_weight_of_two_is_that_of_the_row_twice(backend: str) -> None:
    data, spec = examples_of("classes", 60, 3), spec_of("classes", 3, QUADRATIC)
    some, weight = torch.arange(0, 60, 2), torch.ones(60, dtype=torch.float64)
    weight[some] = 2
    state = train(spec, [data]).state
    for make in (
        lambda: CurvatureSum(state.predictor, state.w, backend),
        lambda: SurrogateSum(state.predictor, state.w),
    ):
        one = accumulate([replace(data, weight=weight)], make()).sums()
        other = accumulate([twice(data, some)], make()).sums()
        for name, sums in one.items():
            if name != "count" or backend == "kronecker":
                assert torch.allclose(sums.double(), other[name].double(), rtol=1e-5, atol=1e-6), name


def test_weights_outlive_shards_and_memory() -> None:
    """Some chunks have weights, others none; who added up which does not matter."""
    data = with_weights(examples_of("binary", 90, 3))
    plain = Examples(*(getattr(rows(data, 60, 90), name) for name in ("key", "x", "y")))
    chunks = [rows(data, 0, 30), rows(data, 30, 60), plain]
    ones = replace(plain, weight=torch.ones(30, dtype=torch.float64))
    spec = spec_of("binary", 3)
    sharded = train(spec, ShardedExamples([chunks[:1], chunks[1:]]), policy=EVERYTHING)
    whole = concatenate([*chunks[:2], ones])
    assert relative_distance(sharded.state, oracles.retrain(spec, whole)) <= 1e-6
    assert sharded.memory.weight is not None
    assert torch.equal(sharded.memory.weight, whole.weight)


@pytest.mark.parametrize("how", ["training", "warm", "adaptation"])
def test_a_network_follows_the_weights_of_examples(how: str) -> None:
    """Every input has both labels; those of one of them weigh nine times as much."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(1000, 3, generator=generator).repeat_interleave(2, 0)
    y = (torch.arange(2000) % 2)[:, None].double()
    spec = spec_of("binary", 3, MLP, l2(0.01))
    weight = torch.where(y[:, 0] > 0, 9.0, 1.0).double()
    data, training = Examples(torch.arange(2000), x, y, weight), Training(max_epochs=40, learning_rate=0.01)
    if how == "training":
        state = train(spec, [data], training=training).state
    else:
        base = train(spec, [replace(data, weight=None)], training=training)
        if how == "warm":
            state = train(spec, [data], training=training, predecessor=Predecessor(base.state, warm=True)).state
        else:
            new = replace(data, key=data.key + 10_000)
            kept, tasks = replace(data, weight=None), [AddData([new])]
            state = adapt(base.state, base.memory, tasks, training=training, draw=draw_from(kept)).state
    mean = float(state.predictor.family.mean(state.predictor.outputs(state.w, data.x)).mean())
    assert mean > 0.7


def test_a_weight_for_each_row_or_none() -> None:
    data = examples_of("binary", 5, 2)
    with pytest.raises(ValueError, match="weight"):
        replace(data, weight=torch.ones(4))
