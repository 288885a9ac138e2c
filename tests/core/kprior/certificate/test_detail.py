"""Third derivatives and feature ranges at the anchor: the bound without a pass lasts for many changes of a table."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from core.kprior import AddData, Examples, MemoryPolicy, RemoveData, Result, State, adapt, train
from core.kprior.certificate.anchored_bound import Movement
from core.kprior.certificate.dense import certify_anchored
from core.kprior.certificate.refinement import Refinement
from core.kprior.certificate.result import Reuse
from core.kprior.data.examples import concatenate
from core.kprior.model.spec import Spec
from core.kprior.passes.detail import Detail, DetailSum, exclusive_groups
from tests.core.kprior.problems import TENTH, l2, rows, without

CITIES, PLANS = 12, 3


def spec_of_table(target: str = "binary", delta: float = 1.0, penalize_bias: bool = False) -> Spec:
    """A number and two category columns."""
    columns = [{"name": "age", "type": "number"}]
    for name, size in (("city", CITIES), ("plan", PLANS)):
        columns.append({"name": name, "type": "category", "values": list(range(size)), "other": True})  # type: ignore[dict-item]
    table = {"input": {"kind": "table", "columns": columns}, "target": {"kind": target}}
    return table | {"architecture": {"kind": "linear"}, "regularizer": l2(delta, penalize_bias)}  # type: ignore[return-value]


def table_rows(count: int, seed: int, drift: float = 0.0, target: str = "binary", first: int = 0) -> Examples:
    """Rows of which one in fifty has one of the rare cities."""
    generator = torch.Generator().manual_seed(seed)
    share = torch.tensor([1.0] * 4 + [0.01] * (CITIES - 4))
    city = torch.multinomial(share, count, replacement=True, generator=generator)
    plan = torch.randint(PLANS, (count,), generator=generator)
    age = torch.randn(count, generator=generator, dtype=torch.float64) + drift
    f = 0.5 * age - 0.5 + 0.8 * (city == 2) - (city == 6).double() + drift
    rate = f.clamp(max=3).exp() if target == "count" else torch.sigmoid(f)
    draw = torch.poisson if target == "count" else torch.bernoulli
    y = draw(rate, generator=generator)
    return Examples(torch.arange(first, first + count), torch.stack([age, city, plan], 1), y[:, None])


def with_detail(result: Result, data: Examples) -> tuple[State, Examples]:
    """The state after a pass that was needed because its sums did not suffice."""
    measured = Refinement(0.0, 1, policy=TENTH, reuse=Reuse.SUMS).run(result.state, result.memory, data.chunks(97))
    assert measured.state.anchor.detail is not None
    return measured.state, measured.memory


def assert_covers(state: State, bound: float | None, data: Examples) -> None:
    """Compare with Newton's method in double precision; the bounds are far above its rounding errors."""
    phi, delta, family = state.predictor.features(data.x), state.regularizer.delta, state.predictor.family
    w = state.w
    for _ in range(8):
        f = phi @ w[:, None]
        H = (phi * family.variance(f)).T @ phi + torch.diag(delta)
        w = w - torch.linalg.solve(H, phi.T @ (family.mean(f) - data.y)[:, 0] + delta * w)
    assert bound is not None
    assert float((state.w - w).norm()) <= bound + 1e-9 * float(w.norm())


@settings(max_examples=15)
@given(
    target=st.sampled_from(("binary", "count")),
    drift=st.sampled_from((0.0, 0.3, 1.5)),
    delta=st.sampled_from((0.01, 1.0, 30.0)),
    penalize_bias=st.booleans(),
    seed=st.integers(0, 2**20),
    memory=st.sampled_from((0.01, 0.3)),
)
def test_bound_with_third_derivatives_covers_along_chains(
    target: str, drift: float, delta: float, penalize_bias: bool, seed: int, memory: float
) -> None:
    policy = MemoryPolicy(fraction=memory)
    data = table_rows(200, seed, target=target)
    trained = train(spec_of_table(target, delta, penalize_bias), data.chunks(97), policy=policy)
    state, remembered = with_detail(trained, data)
    assert_covers(state, certify_anchored(state, remembered).bound, data)
    for step in range(3):
        new = table_rows(20, seed + 1 + step, drift * step, target, first=1000 + 20 * step)
        gone = rows(data, 7 * step, 7 * step + 10)
        adapted = adapt(state, remembered, [AddData([new]), RemoveData([gone])], policy=policy)
        state, remembered = State.from_bytes(adapted.state.to_bytes()), adapted.memory
        data = concatenate([without(data, gone), new])
        assert state.anchor.detail is not None
        assert adapted.certificate is not None
        bounds = [found.bound for found in (adapted.certificate, certify_anchored(state, remembered))]
        assert_covers(state, min(bounds), data)


def test_second_pass_is_not_needed_for_many_changes() -> None:
    base, policy = table_rows(4000, 0), MemoryPolicy()
    trained = train(spec_of_table(), base.chunks(1000), policy=policy)
    passes = {}
    for detailed in (False, True):
        state, memory, data, count = trained.state, trained.memory, base, 0
        for day in range(1, 11):
            new = table_rows(40, day, 0.05 * day, first=4000 + 40 * day)
            data = concatenate([data, new])
            adapted = adapt(state, memory, [AddData([new])], policy=policy)
            state, memory = adapted.state, adapted.memory
            assert adapted.certificate is not None
            if adapted.certificate.meets(0.01):
                continue
            reuse = Reuse.SUMS if detailed else Reuse.LEVERAGES
            found = Refinement(0.01, 3, policy=policy, reuse=reuse).run(state, memory, data.chunks(1000))
            state, memory, count = found.state, found.memory, count + found.cost.data_passes
        passes[detailed] = count
    assert passes[True] <= 2
    assert passes[False] >= 4


def test_detail_is_the_third_derivative_of_the_loss() -> None:
    data = table_rows(50, 3)
    predictor = train(spec_of_table(), [data]).state.predictor
    w = torch.randn(predictor.size, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    d = torch.linspace(-1, 1, predictor.size, dtype=torch.float64)
    phi = predictor.features(data.x)

    at = w.clone().requires_grad_()
    slope = torch.autograd.grad(torch.nn.functional.softplus(phi @ at).sum(), at, create_graph=True)[0]
    curved = torch.autograd.grad(slope @ d, at, create_graph=True)[0]
    second = torch.autograd.grad(curved @ d, at)[0]
    total = DetailSum(predictor, w)
    for chunk in data.chunks(7):
        part = total.empty()
        part.add(chunk)
        total.merge(part.sums())
    assert total.detail is not None
    torch.testing.assert_close(total.detail.bend(d), second / 2, rtol=1e-12, atol=1e-12)


@settings(max_examples=50)
@given(seed=st.integers(0, 2**20))
def test_spread_covers_every_row(seed: int) -> None:
    data = table_rows(60, seed)
    predictor = train(spec_of_table(), [data]).state.predictor
    w = torch.zeros(predictor.size, dtype=torch.float64)
    d = torch.randn(predictor.size, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    phi = predictor.features(data.x)
    detail = Detail.of_rows(predictor, w, phi).rounded()
    farthest = float((phi @ d).abs().max())
    assert farthest <= detail.spread(d)
    for group in exclusive_groups(detail.together):
        assert int((phi[:, group] != 0).sum(1).max()) <= 1 or len(group) == 1


@pytest.mark.parametrize("step", [0.004, 0.1, 1.0, -1.0])
def test_remainder_is_bounded_and_the_bound_is_attained(step: float) -> None:
    """Counts whose outputs all move by the same step: the remainder of e^f is the bound itself if the step is up."""
    x, y = torch.zeros(40, 1, dtype=torch.float64), torch.arange(40.0)[:, None].double() % 3
    data = Examples(torch.arange(40), x, y)
    spec = {"input": {"kind": "vector", "dim": 1}, "target": {"kind": "count"}, "architecture": {"kind": "linear"}}
    trained = train(spec | {"regularizer": l2(1.0)}, [data], policy=MemoryPolicy(cap=1))  # type: ignore[arg-type]
    state, _ = with_detail(trained, data)
    w = state.w + torch.tensor([0.0, step], dtype=torch.float64)
    given = (state.predictor, state.anchor, state.regularizer, (), w)
    movement = Movement.of(*given, math.inf)
    rest = 40 * float(w[1].exp()) - float(y.sum()) - float(movement.k[1])
    largest = movement.uncertainty.bent * math.sqrt(40 * float(state.w[1].exp()))
    assert abs(rest) <= largest * (1 + 1e-6) + 1e-11
    if step > 0.01:
        assert abs(rest) >= 0.999 * largest


def test_removed_rows_leave_the_third_derivatives() -> None:
    data = table_rows(400, 1)
    state, memory = with_detail(train(spec_of_table(), data.chunks(97), policy=TENTH), data)
    gone = rows(data, 0, 50)
    after = adapt(state, memory, [RemoveData([gone])], policy=TENTH).state
    fresh = Detail.of_rows(state.predictor, state.anchor.w, state.predictor.features(without(data, gone).x))
    assert after.anchor.detail is not None
    torch.testing.assert_close(after.anchor.detail.third, fresh.third, rtol=0, atol=1e-11)


@pytest.mark.parametrize("reuse", [Reuse.LEVERAGES, Reuse.WEIGHTS])
def test_pass_that_was_asked_for_measures_no_third_derivatives(reuse: Reuse) -> None:
    """An erasure's state must not depend on whether earlier sums sufficed, and its passes should be cheap."""
    data = table_rows(400, 1)
    trained = train(spec_of_table(), data.chunks(97), policy=TENTH)
    assert trained.state.anchor.detail is None
    found = Refinement(0.01, 1, policy=TENTH, reuse=reuse).run(trained.state, trained.memory, data.chunks(97))
    assert found.state.anchor.detail is None
