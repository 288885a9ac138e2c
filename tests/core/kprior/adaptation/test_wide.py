"""Wide GLMs, made of small ones by a lower limit: the same promises, without a Hessian."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch

from bench.paper.objective.build import data_gradient
from bench.reselection import reselect
from core.kprior import (
    AddData,
    ChangeModel,
    ChangeRegularizer,
    ChangeTarget,
    Examples,
    MemoryPolicy,
    RemoveData,
    State,
    Task,
    adapt,
    certify,
    curvature,
    refine,
    train,
)
from core.kprior.curvature import Blocks
from core.kprior.passes import encoded
from core.kprior.training import wide as wide_training
from tests.core.kprior import oracles
from tests.core.kprior.problems import (
    LINEAR,
    LOSSES,
    QUADRATIC,
    TENTH,
    distance,
    examples_of,
    l2,
    relative_distance,
    rows,
    spec_of,
    without,
)

DIM = 5


@pytest.fixture(autouse=True)
def everything_is_wide(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(curvature, "MAX_FULL_SIZE", 0)


def single(data: Examples) -> Examples:
    """Inputs as the ledger has them: float32."""
    return Examples(data.key, data.x.float(), data.y)


@pytest.mark.parametrize("penalize_bias", [False, True])
@pytest.mark.parametrize("kind", LOSSES)
def test_training_ends_within_its_bound_of_the_fit(kind: str, penalize_bias: bool) -> None:
    data = single(examples_of(kind, 600, DIM))
    spec = spec_of(kind, DIM, regularizer=l2(1.0, penalize_bias))
    result = train(spec, data.chunks(64), policy=TENTH)
    assert result.converged
    assert isinstance(result.state.curvature, Blocks)
    assert result.certificate is not None
    assert result.certificate.relative is not None
    assert result.certificate.relative <= 0.005
    assert distance(result.state, oracles.retrain(spec, data)) <= (result.certificate.bound or 0)


@pytest.mark.parametrize("penalize_bias", [False, True])
@pytest.mark.parametrize("kind", LOSSES)
def test_changes_are_refined_to_within_the_tolerance(kind: str, penalize_bias: bool) -> None:
    data = single(examples_of(kind, 640, DIM))
    base, new, gone = rows(data, 0, 600), rows(data, 600, 640), rows(data, 5, 60)
    trained = train(spec_of(kind, DIM, regularizer=l2(1.0, penalize_bias)), base.chunks(64), policy=TENTH)
    tasks: list[Task] = [RemoveData([gone]), AddData([new]), ChangeRegularizer(l2(2.0, penalize_bias))]
    adapted = adapt(trained.state, trained.memory, tasks, policy=TENTH)
    left = without(data, gone)
    truth = oracles.retrain(adapted.state.spec, left)
    assert adapted.cost.data_passes == 0
    assert adapted.state.count == len(left)
    for tolerance in (1e-2, 1e-6):
        measured = refine(adapted.state, adapted.memory, left.chunks(64), tolerance=tolerance, holdout=[left])
        assert measured.certificate.relative is not None
        assert measured.certificate.relative <= tolerance
        assert distance(measured.state, truth) <= (measured.certificate.bound or 0)
        assert measured.certificate.passes == measured.cost.data_passes > 0
        assert measured.certificate.prediction_bound is not None
        f, best = (measured.state.predictor.outputs(w, left.x) for w in (measured.state.w, truth))
        mean = measured.state.predictor.family.mean
        assert float((mean(f) - mean(best)).abs().max()) <= measured.certificate.prediction_bound + 1e-9


@pytest.mark.parametrize("kind", ["binary", "classes"])
def test_adaptation_without_a_pass_is_closer_than_doing_nothing(kind: str) -> None:
    data = single(examples_of(kind, 3000, DIM))
    trained = train(spec_of(kind, DIM), data.chunks(500))
    gone = data.take(data.x[:, 0] > 1.5)
    adapted = adapt(trained.state, trained.memory, [RemoveData([gone])])
    truth = oracles.retrain(trained.state.spec, without(data, gone))
    assert distance(adapted.state, truth) < 0.6 * distance(trained.state, truth)


@pytest.mark.parametrize("kind", LOSSES)
def test_gradient_after_a_change_is_that_of_the_retained_rows_at_the_anchor(kind: str) -> None:
    data = single(examples_of(kind, 320, DIM))
    trained = train(spec_of(kind, DIM), rows(data, 0, 300).chunks(64), policy=TENTH)
    gone, new = rows(data, 7, 30), rows(data, 300, 320)
    state = adapt(trained.state, trained.memory, [RemoveData([gone]), AddData([new])], policy=TENTH).state
    state = State.from_bytes(state.to_bytes())
    truth = data_gradient(state.predictor, state.anchor.w, without(data, gone))
    torch.testing.assert_close(state.anchor.gradient, truth, rtol=1e-9, atol=1e-9)
    assert isinstance(state.curvature, Blocks)
    assert not bool(torch.isin(gone.key, state.curvature.drawn).any())
    assert not bool(torch.isin(gone.key, state.memory.key).any())


def test_passes_over_rows_that_the_state_does_not_represent_are_refused() -> None:
    data = single(examples_of("binary", 200, DIM))
    trained = train(spec_of("binary", DIM), data.chunks(64))
    with pytest.raises(ValueError, match="represents 200"):
        certify(trained.state, trained.memory, rows(data, 0, 199).chunks(64))


def test_rows_beyond_the_cache_are_read_again_with_the_same_result(monkeypatch: pytest.MonkeyPatch) -> None:
    data = single(examples_of("classes", 500, DIM))
    kept = train(spec_of("classes", DIM), data.chunks(64))
    monkeypatch.setattr(encoded, "MAX_CACHED_BYTES", 0)
    streamed = train(spec_of("classes", DIM), data.chunks(64))
    assert relative_distance(streamed.state, kept.state.w) < 0.01
    assert streamed.certificate is not None
    assert streamed.certificate.relative is not None
    assert streamed.certificate.relative <= 0.005


def test_features_that_float32_cannot_hold_are_certified_from_the_data_themselves() -> None:
    data = examples_of("binary", 300, 3)
    spec = spec_of("binary", 3, QUADRATIC)
    trained = train(spec, data.chunks(64))
    measured = refine(trained.state, trained.memory, data.chunks(64), tolerance=1e-7)
    assert measured.certificate.relative is not None
    assert measured.certificate.relative <= 1e-7
    assert distance(measured.state, oracles.retrain(spec, data)) <= (measured.certificate.bound or 0)


@pytest.mark.parametrize("limit", ["kronecker", "diagonal"])
def test_other_preconditioners_lead_to_the_same_optimum(limit: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(curvature, "MAX_BLOCK_NUMBERS", 0)
    monkeypatch.setattr(curvature, "MAX_KRONECKER_INPUTS", 10**4 if limit == "kronecker" else 0)
    data = single(examples_of("classes", 500, DIM))
    trained = train(spec_of("classes", DIM), data.chunks(64))
    assert trained.state.curvature is not None
    assert trained.state.curvature.kind == limit
    gone = rows(data, 3, 40)
    adapted = adapt(trained.state, trained.memory, [RemoveData([gone])])
    left = without(data, gone)
    measured = refine(adapted.state, adapted.memory, left.chunks(64), tolerance=1e-4)
    assert measured.certificate.relative is not None
    assert measured.certificate.relative <= 1e-4
    assert distance(measured.state, oracles.retrain(trained.state.spec, left)) <= (measured.certificate.bound or 0)


def test_growing_samples_lead_to_the_same_optimum(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wide_training, "MIN_SAMPLE_ROWS", 100)
    data = single(examples_of("classes", 2000, DIM))
    trained = train(spec_of("classes", DIM), data.chunks(100))
    truth = oracles.retrain(trained.state.spec, data)
    assert trained.certificate is not None
    assert distance(trained.state, truth) <= (trained.certificate.bound or 0)


def test_class_without_rows_and_a_free_bias_has_an_infinite_bound() -> None:
    data = single(examples_of("classes", 300, DIM))
    trained = train(spec_of("classes", DIM), data.chunks(64))
    gone = data.take(data.y[:, 2] == 1)
    adapted = adapt(trained.state, trained.memory, [RemoveData([gone])])
    measured = refine(adapted.state, adapted.memory, without(data, gone).chunks(64), tolerance=0.01)
    assert measured.certificate.bound == math.inf


def test_passes_end_if_a_class_without_rows_has_no_optimum() -> None:
    """No pass can give a bound: the solver stops where the gradient is small."""
    every = single(examples_of("classes", 300, DIM))
    data = every.take(every.y[:, 2] == 0)
    base = train(spec_of("classes", DIM), data.chunks(64))
    found = refine(base.state, base.memory, data.chunks(64), tolerance=1e-3)
    assert base.cost.data_passes < 60
    assert found.cost.data_passes < 20
    assert found.certificate.bound == math.inf
    seen = found.state.predictor.family.mean(found.state.predictor.outputs(found.state.w, data.x))
    assert float(seen[:, 2].max()) < 0.01


def test_model_without_a_penalty_is_trained_all_the_same() -> None:
    data = single(examples_of("number", 200, DIM))
    spec = spec_of("number", DIM, regularizer=l2(0.0))
    assert relative_distance(train(spec, data.chunks(64)).state, oracles.retrain(spec, data)) < 1e-4


@pytest.mark.parametrize("architectures", [(QUADRATIC, LINEAR), (LINEAR, QUADRATIC)], ids=["down", "up"])
def test_another_architecture_is_refined_to_its_optimum(architectures: tuple[dict[str, object], ...]) -> None:
    data = single(examples_of("binary", 400, 3))
    trained = train(spec_of("binary", 3, architectures[0]), data.chunks(64), policy=MemoryPolicy(fraction=0.5))
    adapted = adapt(trained.state, trained.memory, [ChangeModel(architectures[1])])
    measured = refine(adapted.state, adapted.memory, data.chunks(64), tolerance=1e-3)
    assert measured.certificate.relative is not None
    assert measured.certificate.relative <= 1e-3
    truth = oracles.retrain(adapted.state.spec, data)
    assert distance(measured.state, truth) <= (measured.certificate.bound or 0)


def test_memory_can_be_selected_again() -> None:
    data = single(examples_of("classes", 300, DIM))
    trained = train(spec_of("classes", DIM), data.chunks(64))
    again = reselect(trained.state, data.chunks(64), MemoryPolicy(fraction=0.2))
    assert len(again.memory) == 60
    assert torch.equal(again.state.w, trained.state.w)


def test_same_seed_gives_the_same_bytes() -> None:
    data = single(examples_of("classes", 300, DIM))
    first, second = (train(spec_of("classes", DIM), data.chunks(64)).state.to_bytes() for _ in range(2))
    assert first == second


def test_tolerance_of_zero_ends_at_what_rounding_leaves() -> None:
    data = single(examples_of("binary", 300, DIM))
    trained = train(spec_of("binary", DIM, regularizer=l2(1.0, True)), data.chunks(64))
    measured = refine(trained.state, trained.memory, data.chunks(64), tolerance=0.0)
    assert measured.certificate.relative is not None
    assert measured.certificate.relative < 1e-8


def test_few_rows_of_many_features_are_fitted() -> None:
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(100, 300, generator=generator)
    data = Examples(torch.arange(100), x, x[:, :1].double() + 0.1)
    spec = spec_of("number", 300, regularizer=l2(0.1))
    result = train(spec, data.chunks(64))
    assert result.converged
    assert distance(result.state, oracles.retrain(spec, data)) <= (result.certificate.bound or 0)  # type: ignore[union-attr]


def test_added_rows_do_not_throw_a_model_off() -> None:
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(110, 300, generator=generator)
    data = Examples(torch.arange(110), x, (x[:, :1] > 0).double())
    trained = train(spec_of("binary", 300, regularizer=l2(0.1, True)), rows(data, 0, 100).chunks(64))
    adapted = adapt(trained.state, trained.memory, [AddData([rows(data, 100, 110)])])
    assert float(adapted.state.w.norm()) < 3 * float(trained.state.w.norm())


@pytest.mark.parametrize("value", [math.nan, 1e39, 1e160])
def test_extreme_inputs_have_an_infinite_bound(value: float) -> None:
    data = examples_of("number", 50, 2)
    trained = train(spec_of("number", 2), data.chunks(64))
    x = data.x.clone()
    x[3] = value
    other = Examples(data.key, x, data.y)
    measured = certify(trained.state, trained.memory, other.chunks(64))
    assert measured.certificate.bound == math.inf


CLASS_CHANGES = {
    "a class comes": (["a", "b", "c"], ["a", "b", "c", "d"], (0.0, 1.0, 2.0)),
    "two classes come and two merge": (["a", "b", "c"], ["a", "bc", "d", "e"], (0.0, 1.0, 1.0)),
    "yes and no become three": (None, ["no", "yes", "perhaps"], (0.0, 1.0)),
}


@pytest.mark.parametrize("limit", [0, 12])
@pytest.mark.parametrize("blocks", [True, False])
@pytest.mark.parametrize("change", CLASS_CHANGES)
def test_other_classes_are_refined_from_the_old_weights(
    change: str, blocks: bool, limit: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    before, after, codes = CLASS_CHANGES[change]
    monkeypatch.setattr(curvature, "MAX_FULL_SIZE", limit)  # with 12, the old model of yes and no is dense
    if not blocks:
        monkeypatch.setattr(curvature, "MAX_BLOCK_NUMBERS", 0)
    kind = "binary" if before is None else "classes"
    old, K = single(examples_of(kind, 900, DIM)), len(after)
    spec: Any = spec_of(kind, DIM, regularizer=l2(1.0, False))
    spec |= {} if before is None else {"target": {"kind": "classes", "values": before}}
    base = train(spec, old.chunks(64), policy=TENTH)
    labels = old.y.argmax(1) if before else old.y[:, 0].long()
    x = torch.randn(90, DIM, generator=torch.Generator().manual_seed(4)) + 1
    new = Examples(torch.arange(900, 990), x, torch.nn.functional.one_hot(torch.arange(90) % K, K).float())
    same = Examples(old.key, old.x, torch.nn.functional.one_hot(torch.tensor(codes)[labels].long(), K).float())
    target: Any = {"kind": "classes", "values": after}
    gone = rows(same, 0, 50)
    tasks: list[Task] = [AddData([new]), RemoveData([gone]), ChangeTarget(target, codes)]
    adapted = adapt(base.state, base.memory, tasks, policy=TENTH)
    assert (adapted.state.count, adapted.state.anchor.exact) == (940, False)
    data = [rows(same, 50, 900), new]
    found = refine(adapted.state, adapted.memory, data, tolerance=0.01)
    whole = Examples(*(torch.cat([getattr(d, name) for d in data]) for name in ("key", "x", "y")))
    truth = oracles.retrain({**spec, "target": target}, whole)
    assert found.certificate.relative <= 0.01
    assert distance(found.state, truth) <= found.certificate.bound
    again = State.from_bytes(found.state.to_bytes())
    removed = adapt(again, found.memory, [RemoveData([rows(same, 50, 80)])], policy=TENTH)
    last = refine(removed.state, removed.memory, [rows(same, 80, 900), new], tolerance=0.01)
    assert last.certificate.relative <= 0.01


def test_a_class_that_comes_is_recognised_before_any_pass() -> None:
    old = single(examples_of("classes", 900, DIM))
    spec: Any = spec_of("classes", DIM, regularizer=l2(1.0, False))
    base = train(spec, old.chunks(64), policy=TENTH)
    values = spec["target"]["values"]
    K = len(values)
    x = torch.randn(90, DIM, generator=torch.Generator().manual_seed(4)) + 3
    y = torch.nn.functional.one_hot(torch.full((90,), K), K + 1).float()
    target: Any = {"kind": "classes", "values": [*values, "new"]}
    change = ChangeTarget(target, tuple(float(k) for k in range(K)))
    state = adapt(base.state, base.memory, [AddData([Examples(torch.arange(900, 990), x, y)]), change]).state
    assert (state.predictor.outputs(state.w, x).argmax(1) == K).float().mean() > 0.9
    assert (state.predictor.outputs(state.w, old.x).argmax(1) == K).float().mean() < 0.1
