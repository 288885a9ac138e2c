"""Sums that stay at their anchor: removal is exact, and the bound without a pass covers the truth along any chain."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import assume, given, reject, settings
from hypothesis import strategies as st
from torch import Tensor

from core.kprior import (
    AddData,
    ChangeModel,
    ChangeRegularizer,
    Cost,
    Examples,
    MemoryPolicy,
    RemoveData,
    State,
    Task,
    adapt,
    refine,
    train,
)
from core.kprior.certificate.dense import certify_anchored, certify_by_gradients
from core.kprior.certificate.refinement import Refinement
from core.kprior.curvature import Full
from core.kprior.data.examples import concatenate
from core.kprior.memory.memory import MemoryChoice
from core.kprior.state.measurement import measure
from tests.core.kprior import oracles
from tests.core.kprior.executed import executes_at_least
from tests.core.kprior.ill_conditioned import IllConditionedProblem, ill_conditioned_problems
from tests.core.kprior.problems import FAMILIES, LOSSES, TENTH, distance, examples_of, l2, rows, spec_of, without

ULP = float(np.finfo(np.float64).eps)


def truth_of(state: State, data: Examples) -> Tensor | None:
    """The retrain in long double; None where there is none, as some class has no example left."""
    kind, y = oracles.kind_of(state.spec), data.y.double().numpy()
    phi = oracles.design_matrix(data.x, state.spec["architecture"])
    deltas = oracles.deltas_of(state.spec, y.shape[1], phi.shape[1])
    if kind in FAMILIES and kind != "number" and bool((y.sum(0) == 0).any()):
        return None
    if kind == "binary" and bool((y == 1).all()):
        return None
    mean, weight = oracles.mean_of(state.spec, len(deltas)), oracles.row_weights(state.spec, data)
    return torch.from_numpy(oracles.newton(kind, phi, y, deltas, mean, weight=weight).astype(np.float64))


def assert_covers(state: State, bound: float | None, data: Examples) -> None:
    truth = truth_of(state, data)
    assert bound is not None
    if truth is not None:
        assert distance(state, truth) <= bound + ULP * float(state.w.norm()) + 1e-12 * bound


@executes_at_least(80)
@settings(max_examples=160)
@given(
    problem=ill_conditioned_problems(),
    fraction=st.sampled_from((0.01, 0.1, 0.5)),
    seed=st.integers(0, 2**20),
    steps=st.integers(1, 5),
    detailed=st.booleans(),
)
def test_bound_without_a_pass_covers_along_chains_of_rough_changes(
    problem: IllConditionedProblem, fraction: float, seed: int, steps: int, detailed: bool
) -> None:
    """Badly scaled, collinear, offset data; examples come, go by chance or by a plane, and the penalty changes."""
    everything = problem.data
    few = problem.n // 3
    assume(problem.n - few >= 8)
    data = rows(everything, 0, problem.n - few)
    policy = MemoryPolicy(fraction=fraction)
    generator = torch.Generator().manual_seed(seed)
    try:
        trained = train(problem.spec, data.chunks(7), policy=policy)
    except (ArithmeticError, ValueError):
        reject()  # nothing determines the weights, so there is no model to adapt
    state, memory = trained.state, trained.memory
    assert trained.certificate is not None
    assert_covers(state, trained.certificate.bound, data)
    if detailed:  # a pass that was needed measures third derivatives as well, for families that have them
        moved = Refinement(0.0, 1, policy=policy).run(state, memory, data.chunks(7))
        state, memory = moved.state, moved.memory
        assert_covers(state, moved.certificate.bound, data)
    spare = rows(everything, problem.n - few, problem.n)
    for _ in range(steps):
        tasks: list[Task] = []
        draw = torch.rand(4, generator=generator)
        if draw[0] < 0.6 and len(spare) >= 2:
            some, spare = rows(spare, 0, 2), rows(spare, 2, len(spare))
            tasks.append(AddData([some]))
            data = concatenate([data, some])
        if draw[1] < 0.7 and len(data) > 6:
            kept = data.take(torch.isin(data.key, everything.key))
            index = torch.randperm(len(kept) - 2, generator=generator)[:2] + 2
            if draw[3] < 0.4:
                index = kept.x[2:, 0].topk(2).indices + 2
            gone = kept.take(index)
            if int(gone.key.max()) < problem.n - few:  # not one that has just come
                tasks.append(RemoveData([gone]))
                data = without(data, gone)
        if draw[2] < 0.3:
            power = float(problem.delta + 2 * draw[2] - 0.3)
            tasks.append(ChangeRegularizer({**problem.spec["regularizer"], "delta": 10.0**power}))
        try:
            adapted = adapt(state, memory, tasks, policy=policy)
        except (ArithmeticError, ValueError):
            reject()
        state, memory = adapted.state, adapted.memory
        assert adapted.certificate is not None
        assert adapted.certificate.passes == 0
        assert adapted.cost.data_passes == 0
        assert_covers(state, adapted.certificate.bound, data)
        assert_covers(state, certify_anchored(state, memory).bound, data)


@settings(max_examples=30)
@given(
    kind=st.sampled_from(LOSSES),
    far=st.floats(0.0, 4.0),
    new=st.integers(1, 40),
    seed=st.integers(0, 2**20),
    delta=st.sampled_from((0.1, 1.0, 10.0)),
)
def test_bound_covers_where_rows_of_another_population_bring_a_feature(
    kind: str, far: float, new: int, seed: int, delta: float
) -> None:
    """One feature no row has, one comes with the added rows: weights that nobody spoke of before."""
    past, come = examples_of(kind, 300, 5, seed), examples_of(kind, new, 5, seed, first_key=300)
    past.x[:, 3:], come.x[:, 4] = 0, 0
    come.x[:, 3] += far
    base = train(spec_of(kind, 5, regularizer=l2(delta)), [past], policy=TENTH)
    adapted = adapt(base.state, base.memory, [AddData([come])], policy=TENTH)
    assert adapted.certificate is not None
    assert_covers(adapted.state, adapted.certificate.bound, concatenate([past, come]))
    again = adapt(adapted.state, adapted.memory, [RemoveData([rows(past, 0, 20)])], policy=TENTH)
    assert again.certificate is not None
    assert_covers(again.state, again.certificate.bound, concatenate([rows(past, 20, 300), come]))


def test_features_that_no_row_has_do_not_loosen_the_bound() -> None:
    data = examples_of("binary", 2000, 4)
    data.x[:, 3] = 0
    left, gone = rows(data, 20, 2000), rows(data, 0, 20)
    relative = []
    for some in (4, 3):
        cut = [Examples(part.key, part.x[:, :some], part.y) for part in (data, gone, left)]
        base = train(spec_of("binary", some, regularizer=l2(0.01)), [cut[0]])
        found = adapt(base.state, base.memory, [RemoveData([cut[1]])]).certificate
        assert found is not None
        assert found.relative is not None
        relative.append(found.relative)
    assert relative[0] <= 1.2 * relative[1]


@executes_at_least(50)
@settings(max_examples=100)
@given(problem=ill_conditioned_problems(), seed=st.integers(0, 2**20))
def test_bound_of_a_gradient_pass_covers(problem: IllConditionedProblem, seed: int) -> None:
    """The curvature stays that of the anchor; what a pass for the gradient alone says of the weights is true."""
    data = problem.data
    try:
        trained = train(problem.spec, data.chunks(7), policy=TENTH)
        gone = rows(data, 3, 3 + max(1, problem.n // 8))
        adapted = adapt(trained.state, trained.memory, [RemoveData([gone])], policy=TENTH)
    except (ArithmeticError, ValueError):
        reject()
    left = without(data, gone)
    for rounds, tolerance in ((1, 1e-3), (3, 1e-9)):
        measured = certify_by_gradients(adapted.state, adapted.memory, left.chunks(11), tolerance, rounds, ())
        assert measured.cost.data_passes <= rounds
        assert_covers(measured.state, measured.certificate.bound, left)


@pytest.mark.parametrize("kind", LOSSES)
def test_bound_without_a_pass_is_useful(kind: str) -> None:
    data = examples_of(kind, 4000, 4)
    trained = train(spec_of(kind, 4), rows(data, 0, 3980).chunks(500))
    gone, new = rows(data, 10, 30), rows(data, 3980, 4000)
    adapted = adapt(trained.state, trained.memory, [RemoveData([gone]), AddData([new])])
    assert adapted.certificate is not None
    assert adapted.certificate.relative is not None
    assert adapted.certificate.relative < 0.01
    assert_covers(adapted.state, adapted.certificate.bound, without(data, gone))


@pytest.mark.parametrize("penalize_bias", [False, True])
@pytest.mark.parametrize("kind", LOSSES)
def test_sums_after_a_removal_are_those_of_a_state_that_never_had_the_rows(kind: str, penalize_bias: bool) -> None:
    data = examples_of(kind, 300, 4)
    spec = spec_of(kind, 4, regularizer=l2(0.5, penalize_bias))
    trained = train(spec, rows(data, 0, 280).chunks(64), policy=TENTH)
    gone, new = rows(data, 5, 45), rows(data, 280, 300)
    tasks: list[Task] = [RemoveData([gone]), AddData([new])]
    state = adapt(trained.state, trained.memory, tasks, policy=TENTH).state
    state = State.from_bytes(state.to_bytes())
    left = without(data, gone)
    anchor = state.anchor
    assert torch.equal(anchor.w, trained.state.w)
    fresh = measure(
        state.predictor, state.regularizer, anchor.w, left.chunks(50), MemoryChoice(TENTH, 10), "full", Cost()
    ).anchor
    assert isinstance(anchor.curvature, Full)
    assert isinstance(fresh.curvature, Full)
    scale = float(fresh.curvature.matrix.abs().max())
    torch.testing.assert_close(anchor.gradient, fresh.gradient, rtol=0, atol=1e-12 * scale)
    torch.testing.assert_close(anchor.curvature.matrix, fresh.curvature.matrix, rtol=0, atol=1e-12 * scale)
    assert anchor.peak >= fresh.peak * (1 - 1e-5)
    assert anchor.smallest <= fresh.smallest * (1 + 1e-9)
    assert not bool(torch.isin(gone.key, state.memory.key).any())


@pytest.mark.parametrize("kind", LOSSES)
def test_reach_covers_every_example_outside_memory(kind: str) -> None:
    data = examples_of(kind, 500, 4)
    trained = train(spec_of(kind, 4), rows(data, 0, 400).chunks(64), policy=TENTH)
    state, memory, present = trained.state, trained.memory, rows(data, 0, 400)
    for step in range(5):
        new, gone = rows(data, 400 + 20 * step, 420 + 20 * step), rows(data, 30 * step, 30 * step + 10)
        adapted = adapt(state, memory, [AddData([new]), RemoveData([gone])], policy=TENTH)
        state, memory, present = adapted.state, adapted.memory, without(concatenate([present, new]), gone)
        out = present.take(~torch.isin(present.key, state.memory.key))
        found = [
            measure(
                state.predictor, state.regularizer, state.anchor.w, part, MemoryChoice(TENTH, 1), "full", Cost()
            ).anchor
            for part in ([present],)
        ]
        assert state.anchor.peak >= found[0].peak * (1 - 1e-5)
        H = state.curvature.dense(state.predictor.size) + torch.diag(state.regularizer.delta)  # type: ignore[union-attr]
        K, phi = state.predictor.family.outputs, state.predictor.features(out.x)
        inverse = torch.linalg.pinv(H)
        changes = [torch.eye(K)[k] - torch.eye(K)[j] for k in range(K) for j in range(k)] or [torch.ones(1)]
        directions = torch.stack([torch.einsum("k,nd->nkd", c.double(), phi).flatten(1) for c in changes])
        leverage = torch.einsum("cnp,pq,cnq->cn", directions, inverse, directions)
        family, f = state.predictor.family, state.predictor.outputs(state.anchor.w, out.x)
        if family.kinked:
            leverage = leverage / family.slack(out.y, f)[:, 0] ** 2
        assert float(leverage.max()) <= state.anchor.reach * (1 + 1e-6)


def test_two_hundred_changes_are_never_above_the_tolerance_without_a_pass() -> None:
    tolerance, passes = 0.002, 0
    data = examples_of("binary", 3000 + 200 * 5, 4)
    trained = train(spec_of("binary", 4), rows(data, 0, 3000).chunks(500))
    state, memory, present = trained.state, trained.memory, rows(data, 0, 3000)
    generator = torch.Generator().manual_seed(0)
    for step in range(200):
        new = rows(data, 3000 + 5 * step, 3005 + 5 * step)
        gone = present.take(torch.randperm(len(present), generator=generator)[:5])
        result = adapt(state, memory, [AddData([new]), RemoveData([gone])])
        present = without(concatenate([present, new]), gone)
        measured = refine(result.state, result.memory, present.chunks(1000), tolerance=tolerance)
        state, memory, passes = measured.state, measured.memory, passes + measured.cost.data_passes
        assert measured.certificate.passes == measured.cost.data_passes
        assert measured.certificate.relative is not None
        assert measured.certificate.relative <= tolerance
        if step % 40 == 39:
            assert_covers(state, measured.certificate.bound, present)
    assert 1 <= passes <= 40


def test_far_changes_have_an_infinite_bound_and_not_a_wrong_one() -> None:
    data = examples_of("binary", 60, 3)
    trained = train(spec_of("binary", 3, regularizer=l2(0.01)), data.chunks(64), policy=MemoryPolicy(cap=1))
    gone = data.take(data.key[data.y[:, 0] == 1][:-1])
    adapted = adapt(trained.state, trained.memory, [RemoveData([gone])], policy=MemoryPolicy(cap=1))
    assert adapted.certificate is not None
    assert adapted.certificate.bound == math.inf


def test_weight_that_only_removed_rows_spoke_of_has_no_bound() -> None:
    """The Hessian is singular without them: a factor with something added to it must not speak for it."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(40, 2, generator=generator, dtype=torch.float64)
    x[8:, 1] = 0
    data = Examples(torch.arange(40), x, x[:, :1] + 2 * x[:, 1:])
    spec = spec_of("number", 2, regularizer=l2([1e4, 0.0, 1e4], True))
    trained = train(spec, data.chunks(16), policy=TENTH)
    adapted = adapt(trained.state, trained.memory, [RemoveData([rows(data, 0, 8)])], policy=TENTH)
    assert adapted.certificate is not None
    assert adapted.certificate.bound == math.inf


@settings(max_examples=60)
@given(seed=st.integers(0, 2**20), powers=st.lists(st.integers(-2, 16), min_size=4, max_size=4))
def test_bound_covers_where_penalties_differ_by_orders_of_magnitude(seed: int, powers: list[int]) -> None:
    data = examples_of("binary", 80, 3, seed)
    spec = spec_of("binary", 3, regularizer=l2([10.0**power for power in powers], True))
    trained = train(spec, data.chunks(16), policy=TENTH)
    gone = rows(data, 5, 9)
    adapted = adapt(trained.state, trained.memory, [RemoveData([gone])], policy=TENTH)
    assert adapted.certificate is not None
    assert_covers(adapted.state, adapted.certificate.bound, without(data, gone))


def test_metrics_before_and_after_a_row_reveal_little_about_it() -> None:
    data = examples_of("binary", 300, 4)
    trained = train(spec_of("binary", 4), rows(data, 0, 299).chunks(64), policy=TENTH)
    one = rows(data, 299, 300)
    there = adapt(trained.state, trained.memory, [AddData([one])], policy=TENTH)
    back = adapt(there.state, there.memory, [RemoveData([one])], policy=TENTH).state.anchor
    for name in ("mass", "rounding", "reach", "peak"):
        mantissa = math.frexp(getattr(back, name))[0] * 1024
        assert mantissa == round(mantissa)


def test_removed_row_that_is_not_the_remembered_one_is_refused() -> None:
    data = examples_of("binary", 100, 3)
    trained = train(spec_of("binary", 3), data.chunks(64), policy=TENTH)
    key = trained.state.memory.key[:1]
    other = Examples(key, data.x[key] + 3, data.y[key])
    with pytest.raises(ValueError, match="differs from the one that the memory has"):
        adapt(trained.state, trained.memory, [RemoveData([other])], policy=TENTH)


def test_changed_model_of_many_weights_is_certified_in_few_passes() -> None:
    data = examples_of("binary", 2000, 20)
    trained = train(spec_of("binary", 20), data.chunks(500))
    adapted = adapt(trained.state, trained.memory, [ChangeModel({"kind": "linear", "degree": 2})])
    assert adapted.state.predictor.size == 231
    measured = refine(adapted.state, adapted.memory, data.chunks(500), tolerance=0.01, rounds=6)
    assert measured.certificate.relative is not None
    assert measured.certificate.relative <= 0.01
