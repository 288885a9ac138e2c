"""Penalties of single columns, and toward given weights, against fits of scikit-learn and SciPy.

A column's delta is what scaling the column does; drawing w toward m is drawing v = w - m to 0, with phi m as an offset.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from scipy.optimize import minimize, root
from sklearn.linear_model import Ridge

from bench.paper.objective.adaptation import adapt_by
from bench.paper.objective.methods import OURS
from core.kprior import (
    AddData,
    CertifiedRemoval,
    ChangeModel,
    ChangeRegularizer,
    Examples,
    RemoveData,
    State,
    Training,
    adapt,
    draw_from,
    refine,
    train,
)
from core.kprior.curvature import is_wide
from core.kprior.state.anchor import hessian_of
from tests.core.kprior.oracles import Array, design_matrix, means, sklearn_fit
from tests.core.kprior.problems import (
    EVERYTHING,
    FAMILIES,
    LINEAR,
    QUADRATIC,
    TENTH,
    examples_of,
    l2,
    outputs_of,
    relative_distance,
    rows,
    spec_of,
    without,
)

TABLE: dict[str, Any] = {
    "kind": "table",
    "columns": [
        {"name": "plan", "type": "category", "values": ["free", "paid"]},
        {"name": "age", "type": "number"},
        {"name": "visits", "type": "number"},
    ],
}


def fit_scaled(kind: str, phi: Array, y: Array, deltas: Array, penalize_bias: bool) -> torch.Tensor:
    """The fit with a delta for each feature: of features over sqrt(delta), all with one penalty, and scaled back."""
    scales = np.append(np.sqrt(deltas), 1.0)
    w = sklearn_fit(kind, phi / scales, y, 1.0, penalize_bias)
    return torch.from_numpy((w.reshape(y.shape[1], -1) / scales).reshape(-1))


@pytest.mark.parametrize("kind", FAMILIES)
@pytest.mark.parametrize("penalize_bias", [False, True])
def test_a_change_of_single_columns_with_data_that_come_and_go_is_exact(kind: str, penalize_bias: bool) -> None:
    """With the bias penalised by 1 as well: scaled features have one delta, 1."""
    data = examples_of(kind, 150, 4, seed=3)
    base = train(spec_of(kind, 4), [rows(data, 0, 120)], policy=EVERYTHING)
    changed = {**l2(1.0, penalize_bias), "columns": {"0": 20.0, "3": 0.05}}
    gone = rows(data, 0, 25)
    tasks = [RemoveData([gone]), AddData([rows(data, 120, 150)]), ChangeRegularizer(changed)]
    adapted = adapt(base.state, base.memory, tasks, policy=EVERYTHING).state
    left = without(data, gone)
    phi = design_matrix(left.x, LINEAR)
    truth = fit_scaled(kind, phi, left.y.numpy(), np.array([20.0, 1.0, 1.0, 0.05]), penalize_bias)
    assert relative_distance(adapted, truth) < 1e-6
    assert adapted.spec["regularizer"] == changed
    again = State.from_bytes(adapted.to_bytes())
    assert torch.equal(again.regularizer.delta, adapted.regularizer.delta)
    # and less memory ends within its bound of the same
    small = train(spec_of(kind, 4), [rows(data, 0, 120)], policy=TENTH)
    near = adapt(small.state, small.memory, tasks, policy=TENTH)
    refined = refine(near.state, near.memory, [left], tolerance=1e-6, rounds=8)
    for state, certificate in ((near.state, near.certificate), (refined.state, refined.certificate)):
        assert certificate is not None
        assert certificate.bound is not None
        assert relative_distance(state, truth) * float(truth.norm()) <= certificate.bound + 1e-6


def test_columns_keep_their_delta_in_another_architecture() -> None:
    """A product of columns has the largest delta of them."""
    data = examples_of("binary", 150, 2, seed=3)
    regularizer = {**l2(1.0), "columns": {"1": 9.0}}
    base = train(spec_of("binary", 2, regularizer=regularizer), [data], policy=EVERYTHING)
    adapted = adapt(base.state, base.memory, [ChangeModel(QUADRATIC)], policy=EVERYTHING).state
    phi = design_matrix(data.x, QUADRATIC)
    truth = fit_scaled("binary", phi, data.y.numpy(), np.array([1.0, 9.0, 1.0, 9.0, 9.0]), False)
    assert relative_distance(adapted, truth) < 1e-6


def test_all_weights_of_a_tables_column_have_its_delta() -> None:
    """Values of a category, and the flag of a missing number, with them."""
    data = examples_of("binary", 200, 3)
    x = data.x.clone()
    x[:, 0] = torch.arange(200) % 3 % 2
    x[::7, 1], x[::11, 2], x[::13, 0] = torch.nan, torch.nan, torch.nan
    data = Examples(data.key, x, data.y)
    spec = {**spec_of("binary", 3), "input": TABLE}
    base = train(spec, [data], policy=EVERYTHING)
    changed = {**l2(1.0), "columns": {"plan": 0.1, "age": 30.0}}
    adapted = adapt(base.state, base.memory, [ChangeRegularizer(changed)], policy=EVERYTHING).state
    phi = adapted.predictor.features(data.x).numpy()
    deltas = np.array([30.0, 1.0, 30.0, 1.0, 0.1, 0.1, 0.1])  # age, visits; each missing; free, paid, neither
    truth = fit_scaled("binary", phi, data.y.numpy(), deltas, False)
    assert relative_distance(adapted, truth) < 1e-6
    assert relative_distance(train({**spec, "regularizer": changed}, [data]).state, truth) < 1e-6


def fit_toward(kind: str, phi: Array, y: Array, delta: Array, m: Array) -> torch.Tensor:
    """m + v, v the fit with the offset phi m: by Ridge of what m leaves, or where SciPy finds no gradient left."""
    if kind == "number":  # a bias without penalty is the intercept
        ridge = Ridge(alpha=1.0, solver="svd").fit(phi[:, :-1] / np.sqrt(delta[:-1]), y[:, 0] - phi @ m)
        v = np.append(ridge.coef_ / np.sqrt(delta[:-1]), ridge.intercept_)
        return torch.from_numpy(m + v)
    K, D = y.shape[1], phi.shape[1]
    offset = phi @ m.reshape(K, D).T

    def gradient(v: Array) -> Array:
        h = means(kind, offset + phi @ v.reshape(K, D).T)
        out = (h - y).T @ phi
        if kind == "classes":
            out[:, -1] += v.reshape(K, D)[:, -1].mean()  # of all biases that say the same, the ones that sum to 0
        return out.reshape(-1) + delta * v

    found = root(gradient, np.zeros(K * D), tol=1e-13)
    assert np.linalg.norm(gradient(found.x)) < 1e-8
    return torch.from_numpy(m + found.x)


def toward_of(kind: str, features: int, seed: int = 5) -> list[float]:
    return np.random.default_rng(seed).normal(size=outputs_of(kind) * features).round(3).tolist()


@pytest.mark.parametrize("kind", FAMILIES)
def test_a_change_toward_given_weights_with_data_that_come_and_go_is_exact(kind: str) -> None:
    data = examples_of(kind, 150, 4, seed=3)
    first = {**l2(3.0), "toward": toward_of(kind, 5, seed=6)}
    base = train(spec_of(kind, 4, regularizer=first), [rows(data, 0, 120)], policy=EVERYTHING)
    changed = {**l2(25.0), "columns": {"1": 2.0}, "toward": toward_of(kind, 5)}
    gone = rows(data, 0, 25)
    tasks = [RemoveData([gone]), AddData([rows(data, 120, 150)]), ChangeRegularizer(changed)]
    adapted = adapt(base.state, base.memory, tasks, policy=EVERYTHING).state
    left = without(data, gone)
    deltas = np.tile([25.0, 2.0, 25.0, 25.0, 0.0], outputs_of(kind))
    truth = fit_toward(kind, design_matrix(left.x, LINEAR), left.y.numpy(), deltas, np.array(changed["toward"]))
    assert relative_distance(adapted, truth) < 1e-6
    assert relative_distance(train({**adapted.spec}, [left]).state, truth) < 1e-6
    again = State.from_bytes(adapted.to_bytes())
    assert again.to_bytes() == adapted.to_bytes()
    assert torch.equal(again.regularizer.gradient(again.w), adapted.regularizer.gradient(adapted.w))
    # and back
    back = adapt(again, left, [ChangeRegularizer(l2(1.0))], policy=EVERYTHING).state
    assert relative_distance(back, train(spec_of(kind, 4, regularizer=l2(1.0)), [left]).state.w) < 1e-6


def test_a_strong_penalty_gives_the_other_model_and_a_weak_one_the_data() -> None:
    data, m = examples_of("binary", 150, 3), torch.tensor(toward_of("binary", 4)).double()
    for delta, near in ((1e6, m), (1e-6, train(spec_of("binary", 3, regularizer=l2(1e-6, True)), [data]).state.w)):
        regularizer = {**l2(delta, True), "toward": m.tolist()}
        assert relative_distance(train(spec_of("binary", 3, regularizer=regularizer), [data]).state, near) < 1e-3


def test_weights_of_a_table_mean_the_same_in_all_units() -> None:
    """`toward` speaks of the columns as they are given; the model measures them in units of its own."""
    x = 100 + 7 * examples_of("binary", 200, 3).x
    x[:, 0] = torch.arange(200) % 2
    x[::7, 1] = torch.nan
    data = Examples(torch.arange(200), x, examples_of("binary", 200, 3).y)
    toward = [0.02, -0.03, 0.5, 0.0, 0.3, -0.2, 0.1, -1.5]  # age, visits; each missing; free, paid, neither; bias
    spec = {**spec_of("binary", 3), "input": TABLE, "regularizer": {**l2(1e8, True), "toward": toward}}
    state = train(spec, [data]).state
    assert not torch.equal(state.predictor.encoder.mean, torch.zeros(2))
    age, visits = x[:, 1].nan_to_num(0.0), x[:, 2]
    f = 0.02 * age - 0.03 * visits + 0.5 * x[:, 1].isnan() + torch.where(x[:, 0] == 1, -0.2, 0.3) - 1.5
    torch.testing.assert_close(state.predictor.outputs(state.w, x)[:, 0], f, atol=1e-4, rtol=0)
    for architecture in (QUADRATIC, {"kind": "mlp", "hidden": [2]}):
        with pytest.raises(ValueError, match="toward"):
            train({**spec, "architecture": architecture}, [data])


def test_given_weights_do_not_outlive_their_number() -> None:
    data = examples_of("binary", 60, 3)
    regularizer = {**l2(), "toward": toward_of("binary", 4)}
    base = train(spec_of("binary", 3, regularizer=regularizer), [data], policy=EVERYTHING)
    with pytest.raises(ValueError, match="10 finite numbers"):
        adapt(base.state, base.memory, [ChangeModel(QUADRATIC)])
    wider = {**l2(), "toward": toward_of("binary", 10)}
    tasks = [ChangeModel(QUADRATIC), ChangeRegularizer(wider)]
    adapted = adapt(base.state, base.memory, tasks, policy=EVERYTHING).state
    assert relative_distance(adapted, train(spec_of("binary", 3, QUADRATIC, wider), [data]).state.w) < 1e-6


@pytest.mark.parametrize("penalize_bias", [False, True])
def test_a_wide_model_ends_within_its_bound(penalize_bias: bool) -> None:
    """A softmax whose weights sum to those that it is drawn to, not to 0."""
    dim = 400
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(300, dim, generator=generator, dtype=torch.float64)
    y = torch.nn.functional.one_hot((3 * torch.rand(300, generator=generator)).long(), 3).double()
    data = Examples(torch.arange(300), x, y)
    m = 0.1 + 0.1 * torch.randn(3 * (dim + 1), generator=generator, dtype=torch.float64)
    spec = spec_of("classes", dim, regularizer=l2(20.0, penalize_bias))
    changed = {**l2(30.0, penalize_bias), "toward": m.tolist()}
    base = train(spec, [data])
    assert is_wide(base.state.predictor)
    gone = rows(data, 0, 30)
    adapted = adapt(base.state, base.memory, [RemoveData([gone]), ChangeRegularizer(changed)])
    left = without(data, gone)
    refined = refine(adapted.state, adapted.memory, [left], tolerance=1e-3, rounds=40)
    phi = design_matrix(left.x, LINEAR)
    delta = np.tile([*[30.0] * dim, 30.0 * penalize_bias], 3)
    truth = descend_toward(phi, left.y.numpy(), delta, m.numpy())
    bound = refined.certificate.bound
    assert bound is not None
    assert relative_distance(refined.state, truth) * float(truth.norm()) <= bound + 1e-6
    assert refined.certificate.relative <= 1e-3
    assert abs(float(refined.state.w.view(3, -1)[:, :-1].sum(0).mean()) - 0.3) < 0.05


def descend_toward(phi: Array, y: Array, delta: Array, m: Array) -> torch.Tensor:
    """The softmax's fit by Newton's method with conjugate gradients."""
    K, D = y.shape[1], phi.shape[1]

    def value(w: Array) -> tuple[float, Array]:
        f = phi @ w.reshape(K, D).T
        top = f.max(1, keepdims=True)
        total = (top[:, 0] + np.log(np.exp(f - top).sum(1)) - (y * f).sum(1)).sum()
        gradient = ((means("classes", f) - y).T @ phi).reshape(-1) + delta * (w - m)
        return total + (delta * (w - m) ** 2).sum() / 2, gradient

    def product(w: Array, v: Array) -> Array:
        h, s = means("classes", phi @ w.reshape(K, D).T), phi @ v.reshape(K, D).T
        return ((h * s - h * (h * s).sum(1, keepdims=True)).T @ phi).reshape(-1) + delta * v

    options = {"xtol": 1e-13, "maxiter": 500}
    return torch.from_numpy(minimize(value, m, jac=True, hessp=product, method="Newton-CG", options=options).x)


def test_certified_removal_keeps_its_perturbation_beside_given_weights() -> None:
    data = examples_of("binary", 150, 3)
    promise = CertifiedRemoval(epsilon=1.0, delta=1e-4, sigma=3.0)
    m = np.array(toward_of("binary", 4))
    base = train(spec_of("binary", 3, regularizer=l2(2.0, True)), [data], certified_removal=promise)
    noise = base.state.regularizer.linear
    assert noise is not None
    tasks = [RemoveData([rows(data, 0, 20)]), ChangeRegularizer({**l2(4.0, True), "toward": m.tolist()})]
    adapted = adapt(base.state, base.memory, tasks)
    left = rows(data, 20, 150)
    refined = refine(adapted.state, adapted.memory, [left], tolerance=1e-9, rounds=5).state
    # delta/2 |w - m|^2 + b'w is delta/2 |w - (m - b/delta)|^2 and a constant
    phi = design_matrix(left.x, LINEAR)
    truth = fit_toward("binary", phi, left.y.numpy(), np.full(4, 4.0), m - noise.numpy() / 4)
    assert relative_distance(refined, truth) < 1e-6


def test_a_network_begins_at_the_given_weights_and_stays_near_them() -> None:
    data, mlp = examples_of("binary", 200, 3), {"kind": "mlp", "hidden": [4]}
    training = Training(learning_rate=0.01, max_epochs=60, batch_size=16, patience=None)
    other = train(spec_of("binary", 3, mlp), [data], training=replace(training, seed=7)).state
    toward = {**l2(1e4, True), "toward": other.w.double().tolist()}
    near = train(spec_of("binary", 3, mlp, toward), [rows(data, 0, 100)], training=training)
    assert float((near.state.w - other.w).norm() / other.w.norm()) < 0.01
    elsewhere = [0.5 if weight > 0 else -0.5 for weight in other.w]
    change = ChangeRegularizer({**l2(1e4, True), "toward": elsewhere})
    drawn = adapt(near.state, near.memory, [change], training=training, draw=draw_from(rows(data, 0, 100))).state
    remembered = adapt_by(OURS, near.state, near.memory, [change], training=training).state
    for state, most in ((drawn, 0.1), (remembered, 0.05)):
        assert float((state.w - torch.tensor(elsewhere)).norm() / state.w.norm()) < most


def test_a_penalty_that_differs_by_class_leaves_no_more_curvature_than_there_is() -> None:
    x, y = (
        torch.linspace(-1e-3, 2e-3, 8, dtype=torch.float64)[:, None],
        torch.eye(2, dtype=torch.float64)[torch.arange(8) % 2],
    )
    target = {"kind": "classes", "values": [0, 1]}
    spec = {"input": {"kind": "vector", "dim": 1}, "target": target, "architecture": LINEAR, "regularizer": l2(4.0)}
    base = train(spec, [Examples(torch.arange(8), x, y)])
    each = {"kind": "l2", "delta": [4.0, 1e-3, 4.0, 0.0]}  # no longer the same for both: the constant has a say
    state = adapt(base.state, base.memory, [ChangeRegularizer(each)]).state
    H = hessian_of(state.predictor, state.regularizer, state.anchor)
    assert state.anchor.smallest <= float(torch.linalg.eigvalsh(H)[0]) * (1 + 1e-9)
