"""Other losses than the target's own: held against scikit-learn's LinearSVC, and changed from one to another."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.svm import LinearSVC
from torch import Tensor

from core.kprior import (
    AddData,
    CertifiedRemoval,
    ChangeLoss,
    ChangeModel,
    ChangeRegularizer,
    Examples,
    MemoryPolicy,
    Predictor,
    RemoveData,
    Task,
    adapt,
    adopt,
    refine,
    train,
)
from core.kprior.adaptation.schema import Untransferable
from tests.core.kprior import oracles
from tests.core.kprior.problems import (
    EVERYTHING,
    KINKED,
    LINEAR,
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

OTHERS = [("binary", "squared_hinge"), ("squared_hinge", "binary"), ("number", "huber"), ("huber", "number")]
"""From which loss to which; a target's kind stands for its own."""
NAMES = {"binary": "log", "number": "squared"}


def loss_of(kind: str) -> Any:
    return {"kind": NAMES.get(kind, kind)}


def fit_svc(data: Examples, delta: float, **options: Any) -> Tensor:
    """The support vector machine that penalises its intercept, as scikit-learn's does."""
    model = LinearSVC(loss="squared_hinge", dual=False, C=1 / delta, tol=1e-10, max_iter=100_000, **options)
    weight = None if data.weight is None else data.weight.numpy()
    model.fit(data.x.double().numpy(), data.y[:, 0].numpy(), sample_weight=weight)
    return torch.from_numpy(np.append(model.coef_[0], model.intercept_))


@pytest.mark.parametrize("policy", [EVERYTHING, MemoryPolicy(fraction=0.02)], ids=["everything", "2 percent"])
def test_a_support_vector_machine_stays_that_of_scikit_learn_on_the_retained_rows(policy: MemoryPolicy) -> None:
    data = examples_of("squared_hinge", 3000, 5)
    first, gone = rows(data, 0, 2900), rows(data, 0, 40)
    spec = spec_of("squared_hinge", 5, regularizer=l2(2.0, True))
    base = train(spec, first.chunks(500), policy=policy)
    tasks: list[Task] = [RemoveData([gone]), AddData([rows(data, 2900, 3000)]), ChangeRegularizer(l2(0.5, True))]
    adapted = adapt(base.state, base.memory, tasks, policy=policy)
    left = without(data, gone)
    found = refine(adapted.state, adapted.memory, left.chunks(500), tolerance=1e-6, policy=policy)
    assert found.cost.data_passes <= (0 if policy is EVERYTHING else 2)
    assert found.certificate.bound is not None
    assert found.certificate.relative is not None
    assert found.certificate.relative <= 1e-6
    # its own tolerance is what liblinear leaves
    assert distance(found.state, fit_svc(left, 0.5)) <= found.certificate.bound + 1e-6


@pytest.mark.parametrize(("n", "dim", "delta"), [(300, 30, 1e-2), (600, 10, 1e-4)])
def test_separable_classes_train_to_the_support_vector_machine_of_scikit_learn(n: int, dim: int, delta: float) -> None:
    """With a weak penalty few rows have curvature, and a Newton step passes most kinks."""
    for seed in range(3):
        generator = torch.Generator().manual_seed(seed)
        x = torch.randn(n, dim, generator=generator, dtype=torch.float64)
        y = (x @ torch.randn(dim, 1, generator=generator, dtype=torch.float64) > 0).double()
        data = Examples(torch.arange(n), x, y)
        found = train(spec_of("squared_hinge", dim, regularizer=l2(delta, True)), [data])
        assert found.certificate is not None
        assert found.certificate.relative is not None
        assert found.certificate.relative <= 1e-5
        assert relative_distance(found.state, fit_svc(data, delta)) <= 1e-5


def test_rows_nearest_to_the_margin_are_remembered() -> None:
    """Those that become support vectors, or cease to be, before all others."""
    data = examples_of("squared_hinge", 2000, 4)
    base = train(spec_of("squared_hinge", 4), [data], policy=MemoryPolicy(fraction=0.1))
    f = base.state.predictor.outputs(base.state.w, data.x)
    short = (1 - (2 * data.y - 1) * f)[:, 0].abs() / data.x.norm(dim=1)
    nearest = data.key[short.argsort()[:80]]
    assert float(torch.isin(nearest, base.state.memory.key).double().mean()) > 0.95


def test_a_hundred_removals_from_many_rows_are_exact_and_need_no_pass() -> None:
    data = examples_of("squared_hinge", 20_000, 10)
    base = train(spec_of("squared_hinge", 10), data.chunks(5000))
    gone = rows(data, 0, 20)
    adapted = adapt(base.state, base.memory, [RemoveData([gone])])
    assert adapted.certificate is not None
    assert adapted.certificate.relative is not None
    assert adapted.certificate.relative <= 1e-8
    assert distance(adapted.state, oracles.retrain(base.state.spec, without(data, gone))) <= 1e-10


@pytest.mark.parametrize(("old", "new"), OTHERS)
@pytest.mark.parametrize("weighted", [False, True])
def test_full_memory_gives_the_retrain_with_another_loss(old: str, new: str, weighted: bool) -> None:
    """Alone, and with everything else in one job."""
    data = examples_of(old, 200, 4)
    if weighted:
        data = replace(data, weight=torch.linspace(0.3, 3.0, 200, dtype=torch.float64))
    first, gone = rows(data, 0, 170), rows(data, 0, 15)
    base = train(spec_of(old, 4), first.chunks(37), policy=EVERYTHING)
    alone = adapt(base.state, base.memory, [ChangeLoss(loss_of(new))], policy=EVERYTHING)
    assert alone.state.spec["loss"] == loss_of(new)
    assert relative_distance(alone.state, oracles.retrain(spec_of(new, 4), first)) <= 1e-6
    tasks: list[Task] = [
        ChangeLoss(loss_of(new)),
        AddData([rows(data, 170, 200)]),
        RemoveData([gone]),
        ChangeRegularizer(l2(3.0)),
        ChangeModel(QUADRATIC),
    ]
    all_at_once = adapt(base.state, base.memory, tasks, policy=EVERYTHING)
    truth = oracles.retrain(spec_of(new, 4, QUADRATIC, l2(3.0)), without(data, gone))
    assert relative_distance(all_at_once.state, truth) <= 1e-6


@settings(max_examples=40)
@given(
    pair=st.sampled_from(OTHERS),
    seed=st.integers(0, 2**20),
    n=st.integers(60, 400),
    power=st.integers(-2, 2),
    penalize_bias=st.booleans(),
)
def test_passes_lead_from_a_small_memory_to_the_retrain_with_another_loss(
    pair: tuple[str, str], seed: int, n: int, power: int, penalize_bias: bool
) -> None:
    data = examples_of(pair[0], n, 3, seed)
    regularizer = l2(10.0**power, penalize_bias)
    base = train(spec_of(pair[0], 3, regularizer=regularizer), data.chunks(50), policy=TENTH)
    gone = rows(data, 0, n // 10)
    tasks: list[Task] = [ChangeLoss(loss_of(pair[1])), RemoveData([gone])]
    adapted = adapt(base.state, base.memory, tasks, policy=TENTH)
    left = without(data, gone)
    found = refine(adapted.state, adapted.memory, left.chunks(50), tolerance=1e-4, rounds=20, policy=TENTH)
    assert found.certificate.relative is not None
    assert found.certificate.bound is not None
    assert found.certificate.relative <= 1e-4
    truth = oracles.retrain(spec_of(pair[1], 3, regularizer=regularizer), left)
    assert distance(found.state, truth) <= found.certificate.bound + 1e-9


@settings(max_examples=20)
@given(seed=st.integers(0, 2**20), kind=st.sampled_from(list(KINKED)), away=st.floats(1.0, 20.0))
def test_from_far_away_each_bound_is_finite_and_covers_the_retrain(seed: int, kind: str, away: float) -> None:
    """All weights are penalised: whatever passes a kink, the penalty holds them."""
    data = examples_of(kind, 120, 3, seed)
    spec = spec_of(kind, 3, regularizer=l2(1.0, True))
    truth = oracles.retrain(spec, data)
    far = truth + away * torch.randn(4, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    start = adopt(spec, far, [data], 120, policy=TENTH)
    for rounds in (1, 2, 4):
        found = refine(start.state, start.memory, [data], tolerance=1e-8, rounds=rounds, policy=TENTH)
        assert found.certificate.bound is not None
        assert found.certificate.bound < math.inf
        assert distance(found.state, truth) <= found.certificate.bound + 1e-9
    gone = rows(data, 0, 10)
    adapted = adapt(start.state, start.memory, [RemoveData([gone])], policy=TENTH)
    assert adapted.certificate is not None
    assert adapted.certificate.bound is not None
    assert distance(adapted.state, oracles.retrain(spec, without(data, gone))) <= adapted.certificate.bound < math.inf


def test_another_threshold_is_another_loss() -> None:
    data = examples_of("huber", 150, 3)
    base = train(spec_of("huber", 3), [data], policy=EVERYTHING)
    wide: Any = {"kind": "huber", "threshold": 1e6}
    adapted = adapt(base.state, base.memory, [ChangeLoss(wide)], policy=EVERYTHING)
    # so far out nothing is an outlier
    assert relative_distance(adapted.state, oracles.retrain(spec_of("number", 3), data)) <= 1e-6


@pytest.mark.parametrize("kind", KINKED)
def test_a_network_has_the_loss_of_its_target(kind: str) -> None:
    spec = spec_of(kind, 3, {"kind": "mlp", "hidden": [4]})
    with pytest.raises(ValueError, match=f"The loss '{kind}' is for linear models"):
        Predictor(spec)
    network = train({**spec_of(KINKED[kind], 3, {"kind": "mlp", "hidden": [4]})}, [examples_of(kind, 60, 3)])
    with pytest.raises(Untransferable, match="the previous version is a network"):
        adapt(network.state, network.memory, [ChangeLoss({"kind": kind})])


def test_a_kernel_machine_is_the_support_vector_machine_on_its_features() -> None:
    data = examples_of("squared_hinge", 800, 3)
    kernel: Any = {"kind": "kernel", "kernel": "rbf", "features": 60, "lengthscale": 1.5}
    base = train(spec_of("squared_hinge", 3, kernel, l2(0.5, True)), [data], policy=TENTH)
    gone = rows(data, 0, 30)
    adapted = adapt(base.state, base.memory, [RemoveData([gone])], policy=TENTH)
    left = without(data, gone)
    found = refine(adapted.state, adapted.memory, [left], tolerance=1e-4, rounds=6, policy=TENTH)
    phi = found.state.predictor.features(left.x)[:, :-1]
    assert found.certificate.bound is not None
    assert found.certificate.relative is not None
    assert found.certificate.relative <= 1e-4
    assert distance(found.state, fit_svc(replace(left, x=phi), 0.5)) <= found.certificate.bound + 1e-5


def test_a_wide_model_does_not_follow_another_loss() -> None:
    """It carries no curvature to start from: its training from zero is as quick."""
    data = examples_of("binary", 60, 1200)
    wide = train(spec_of("binary", 1200, regularizer=l2(20.0)), [data])
    with pytest.raises(Untransferable, match="does not carry the curvature"):
        adapt(wide.state, wide.memory, [ChangeLoss({"kind": "squared_hinge"})])


def test_outliers_do_not_pull_the_bias_away() -> None:
    data = examples_of("huber", 400, 3)
    data.y[::20] += 1000.0
    base = train(spec_of("huber", 3), [data])
    f = base.state.predictor.outputs(base.state.w, data.x)
    assert float((f - data.y)[torch.arange(400) % 20 != 0].abs().median()) < 1.5
    assert relative_distance(base.state, oracles.retrain(spec_of("huber", 3), data)) <= 1e-6


def test_certified_removal_bounds_the_gradient_of_a_squared_hinge() -> None:
    data = examples_of("squared_hinge", 400, 4)
    promise = CertifiedRemoval(epsilon=1.0, delta=1e-4, sigma=1.0)
    spec = spec_of("squared_hinge", 4, LINEAR, l2(1.0, True))
    base = train(spec, [data], certified_removal=promise)
    gone = rows(data, 0, 10)
    left = without(data, gone)
    adapted = adapt(base.state, base.memory, [RemoveData([gone])])
    found = refine(adapted.state, adapted.memory, [left], tolerance=1e-6)
    state = found.state
    w = state.w.clone().requires_grad_()
    loss = state.predictor.family.loss(left.y, state.predictor.outputs(w, left.x)).sum()
    (slope,) = torch.autograd.grad(loss, w)
    residual = float((slope + state.regularizer.gradient(state.w)).norm())
    assert residual <= found.certificate.gradient_norm <= promise.allowed
