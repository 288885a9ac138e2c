"""Analyses give what refits by scikit-learn give: leave-one-out, folds, penalties and groups."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
import pytest
import torch
from lightgbm import LGBMClassifier
from numpy.typing import NDArray
from scipy.stats import spearmanr
from sklearn.datasets import load_breast_cancer, load_digits
from sklearn.linear_model import LogisticRegression, Ridge
from sklearn.metrics import log_loss
from sklearn.preprocessing import OneHotEncoder

from core.kprior import (
    AddData,
    ChangeModel,
    ChangeRegularizer,
    Examples,
    RemoveData,
    Result,
    choose_batch,
    cross_validate,
    influence,
    leave_groups_out,
    leave_one_out,
    train,
    what_if,
)
from core.kprior.analyses.influence import loss_gradient, prediction_gradients
from core.kprior.analyses.what_if import WhatIfOptions

Numbers = NDArray[Any]


def spec_of(dim: int, target: dict[str, Any], delta: float, **others: Any) -> Any:
    given = {"input": {"kind": "vector", "dim": dim}, "target": target, "architecture": {"kind": "linear"}}
    return given | {"regularizer": {"kind": "l2", "delta": delta}} | others


@cache
def tabular() -> tuple[Numbers, Numbers]:
    x, y = load_breast_cancer(return_X_y=True)
    return ((x - x.mean(0)) / x.std(0)).astype(np.float64), y


@cache
def digits() -> tuple[Numbers, Numbers]:
    x, y = load_digits(return_X_y=True)
    return x[:600] / 16, y[:600]


def examples(x: Numbers, y: Numbers, classes: int = 2) -> Examples:
    target = torch.from_numpy(y)
    made = target.double()[:, None] if classes == 2 else torch.nn.functional.one_hot(target, classes).double()
    return Examples(torch.arange(len(x)), torch.from_numpy(x), made)


def refit(x: Numbers, y: Numbers, delta: float) -> LogisticRegression:
    return LogisticRegression(C=1 / delta, tol=1e-10, max_iter=10_000).fit(x, y)


@cache
def fitted(delta: float = 2.0) -> Result:
    x, y = tabular()
    return train(spec_of(30, {"kind": "binary"}, delta), [examples(x, y)])


def test_leave_one_out_of_a_table_is_close_to_refits() -> None:
    x, y = tabular()
    found = leave_one_out(fitted().state, [examples(x, y)])
    changes, errors = [], []
    for i in range(0, len(x), 12):
        kept = np.arange(len(x)) != i
        exact = refit(x[kept], y[kept], 2.0).decision_function(x[i : i + 1])[0]
        changes.append(abs(exact - float(found.outputs[i, 0])))
        errors.append(abs(exact - float(found.without[i, 0])))
    assert np.mean(errors) < 0.05 * np.mean(changes)
    assert found.checked == 10
    assert 1e-6 < found.error < 0.05
    assert found.whole


@pytest.mark.parametrize("wide", [False, True])
def test_leave_one_out_of_digits_is_close_to_refits(wide: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    x, y = digits()
    if wide:  # as a head with too many weights for its Hessian
        monkeypatch.setattr("core.kprior.analyses.head_curvature.MAX_EXACT_WEIGHTS", 300)
    state = train(spec_of(64, {"kind": "classes", "values": list(range(10))}, 10.0), [examples(x, y, 10)]).state
    if wide:
        monkeypatch.setattr("core.kprior.analyses.head_curvature.known_curvature", lambda _: None)
    found = leave_one_out(state, [examples(x, y, 10)], check=3)
    changes, errors = [], []
    for i in range(0, len(x), 75):
        kept = np.arange(len(x)) != i
        exact = refit(x[kept], y[kept], 10.0).predict_proba(x[i : i + 1])[0]
        before, after = (torch.softmax(f[i], 0).numpy() for f in (found.outputs, found.without))
        changes.append(np.abs(exact - before).max())
        errors.append(np.abs(exact - after).max())
    assert np.mean(errors) < 0.05 * np.mean(changes)
    assert found.error < 0.05


def test_leave_one_out_of_numbers_is_exact() -> None:
    x, _ = tabular()
    target, features = x[:, 0], x[:, 1:8]
    rows = Examples(torch.arange(len(x)), torch.from_numpy(features), torch.from_numpy(target)[:, None])
    rows = Examples(rows.key, rows.x, rows.y, torch.linspace(0.5, 2, len(x)).double())
    found = leave_one_out(train(spec_of(7, {"kind": "number"}, 3.0), [rows]).state, [rows])
    kept = np.arange(len(x)) != 5
    weight = np.linspace(0.5, 2, len(x))[kept]
    exact = Ridge(alpha=3.0).fit(features[kept], target[kept], weight).predict(features[5:6])[0]
    assert float(found.without[5, 0]) == pytest.approx(exact, rel=1e-8)
    assert found.error < 1e-6


@pytest.mark.parametrize("deltas", [[2.0], [0.1, 1.0, 10.0, 100.0, 1000.0]])
def test_cross_validated_losses_are_those_of_refits(deltas: list[float]) -> None:
    x, y = tabular()
    specs = [spec_of(30, {"kind": "binary"}, delta) for delta in deltas]
    found = cross_validate(fitted().state, [examples(x, y)], lambda key: key % 5, 5, specs)
    losses, exact = [], []
    for one, delta in zip(found, deltas, strict=True):
        losses.append(log_loss(y, torch.sigmoid(one.outputs[:, 0]).numpy()))
        means = np.empty(len(y))
        for k in range(5):
            mine = np.arange(len(y)) % 5 == k
            means[mine] = refit(x[~mine], y[~mine], delta).predict_proba(x[mine])[:, 1]
        exact.append(log_loss(y, means))
        assert one.distance < 1e-3
    assert losses == pytest.approx(exact, rel=1e-3)
    assert np.argmin(losses) == np.argmin(exact)


def test_cross_validation_of_classes_and_of_another_degree() -> None:
    x, y = digits()
    x = x[:, [18, 20, 26, 28, 34, 36, 42, 44]]
    spec = spec_of(8, {"kind": "classes", "values": list(range(10))}, 5.0)
    curved = {**spec, "architecture": {"kind": "linear", "degree": 2}}
    rows = examples(x, y, 10)
    plain, other = cross_validate(train(spec, [rows]).state, [rows], lambda key: key % 4, 4, [spec, curved])
    for one, features in ((plain, x), (other, None)):
        if features is None:
            features = other.state.predictor.features(rows.x).numpy()[:, :-1]
        mine = np.arange(len(y)) % 4 == 1
        exact = refit(features[~mine], y[~mine], 5.0).predict_proba(features[mine])
        assert torch.softmax(one.outputs[mine], 1).numpy() == pytest.approx(exact, abs=2e-3)


def test_folds_of_a_table_have_units_of_their_own() -> None:
    generator = np.random.default_rng(0)
    x = np.c_[np.r_[np.full(60, 0.0), generator.normal(size=60) * 100], generator.normal(size=120)]
    y = (x[:, 0] / 100 + x[:, 1] + generator.normal(size=120) > 0).astype(np.int64)
    columns = [{"name": "a", "type": "number"}, {"name": "b", "type": "number"}]
    spec: Any = spec_of(2, {"kind": "binary"}, 5.0) | {"input": {"kind": "table", "columns": columns}}
    rows = examples(x, y)
    found = cross_validate(train(spec, [rows]).state, [rows], lambda key: (key >= 60).long(), 2)[0]
    alone = train(spec, [rows.take(rows.key < 60)]).state  # in which the first column is constant
    assert torch.allclose(found.outputs[60:], alone.predictor.outputs(alone.w, rows.x[60:]), atol=2e-3)


def test_leave_one_out_of_leaves_is_close_to_refits() -> None:
    """Of trees whose splits were learnt from other rows: on their own rows, analyses refuse leave-one-out."""
    x, y = tabular()
    trees = LGBMClassifier(n_estimators=10, num_leaves=8, random_state=0, verbose=-1).fit(x[::2], y[::2])
    leaves = trees.predict(x[1::2], pred_leaf=True)
    phi = OneHotEncoder(sparse_output=False).fit_transform(leaves)
    labels = y[1::2]
    rows = examples(phi, labels)
    found = leave_one_out(train(spec_of(phi.shape[1], {"kind": "binary"}, 5.0), [rows]).state, [rows])
    changes, errors = [], []
    for i in range(0, len(labels), 12):
        kept = np.arange(len(labels)) != i
        exact = refit(phi[kept], labels[kept], 5.0).decision_function(phi[i : i + 1])[0]
        changes.append(abs(exact - float(found.outputs[i, 0])))
        errors.append(abs(exact - float(found.without[i, 0])))
    assert np.mean(errors) < 0.05 * np.mean(changes)


def test_groups_are_left_out_exactly() -> None:
    x, y = tabular()
    found = leave_groups_out(fitted().state, [examples(x, y)], lambda key: torch.where(key < 500, key // 50, -1), 10)
    assert len(found.key) == 500
    for k in range(0, 10, 3):
        mine = slice(50 * k, 50 * k + 50)
        exact = refit(np.delete(x, mine, 0), np.delete(y, mine), 2.0).decision_function(x[mine])
        assert found.without[mine, 0].numpy() == pytest.approx(exact, rel=1e-4, abs=1e-5)


def test_influence_of_groups_is_that_of_refits() -> None:
    x, y = tabular()
    train_rows, holdout = examples(x[:400], y[:400]), examples(x[400:], y[400:])
    state = train(spec_of(30, {"kind": "binary"}, 2.0), [train_rows]).state
    found = influence(state, [train_rows], lambda key: key // 50, 8, loss_gradient(state, [holdout]), top=8)
    assert sorted(found.group.tolist()) == list(range(8))
    for group, w in zip(found.group.tolist(), found.w, strict=True):
        kept = np.arange(400) // 50 != group
        exact = refit(x[:400][kept], y[:400][kept], 2.0)
        assert w.numpy() == pytest.approx(np.r_[exact.coef_[0], exact.intercept_], rel=1e-4, abs=1e-6)


def test_influence_ranks_the_examples_that_move_a_prediction() -> None:
    x, y = tabular()
    rows, asked = examples(x[:300], y[:300]), torch.from_numpy(x[300:301])
    state = train(spec_of(30, {"kind": "binary"}, 2.0), [rows]).state
    found = influence(state, [rows], lambda key: key, 300, prediction_gradients(state, asked), top=300)
    before = float(torch.sigmoid(state.predictor.outputs(state.w, asked)))
    effect = torch.sigmoid(state.predictor.features(asked) @ found.w.T)[0] - before
    for i in range(0, 300, 30):  # strong and weak ones
        kept = np.arange(300) != int(found.group[i])
        exact = refit(x[:300][kept], y[:300][kept], 2.0).predict_proba(x[300:301])[0, 1] - before
        assert float(effect[i]) == pytest.approx(exact, rel=1e-3, abs=1e-8)
    order = spearmanr(effect.abs(), found.first_order.abs())[0]
    assert order > 0.99  # so that the exact effects of the first are the largest


def test_influence_ranks_by_the_loss_that_metrics_report() -> None:
    """The weights of classes count in training alone."""
    x, y = tabular()
    rows, holdout = examples(x[:300], y[:300]), examples(x[300:], y[300:])
    spec = spec_of(30, {"kind": "binary"}, 20.0, class_weight={"1": 50.0})
    state = train(spec, [rows]).state
    found = influence(state, [rows], lambda key: key // 3, 100, loss_gradient(state, [holdout]), top=100)
    phi = state.predictor.features(holdout.x)
    loss = [float(state.predictor.family.loss(holdout.y, phi @ w[:, None]).mean()) for w in (state.w, *found.w)]
    assert spearmanr(found.first_order, np.array(loss[1:]) - loss[0])[0] > 0.98


def test_chosen_batch_has_the_largest_determinant() -> None:
    x, _ = tabular()
    base, pool = fitted(), torch.from_numpy(x[:200])
    state = base.state
    found = choose_batch(state, pool, 5)
    phi = state.predictor.features(pool)
    variance = state.predictor.family.variance(phi @ state.w[:, None])[:, 0]
    assert state.anchor.curvature is not None
    G = torch.stack([state.anchor.curvature.product(row) for row in torch.eye(31).double()])
    G = G + torch.diag(state.regularizer.delta.clamp(min=1e-6))
    for index, gain in zip(found.index.tolist(), found.gain.tolist(), strict=True):
        gains = [
            float(torch.logdet(G + v * torch.outer(p, p)) - torch.logdet(G)) for v, p in zip(variance, phi, strict=True)
        ]
        gains = [
            -1.0 if i in found.index.tolist()[: found.index.tolist().index(index)] else g for i, g in enumerate(gains)
        ]
        assert index == int(np.argmax(gains))
        assert gain == pytest.approx(gains[index], rel=1e-6)
        G = G + variance[index] * torch.outer(phi[index], phi[index])


def test_what_if_passes_only_where_it_must() -> None:
    x, y = tabular()
    rows, base = examples(x, y), fitted()
    few, many = rows.take(rows.key < 3), rows.take(rows.y[:, 0] < 1).take(torch.arange(150))
    cheap = what_if(base.state, base.memory, [RemoveData([few])])
    assert (cheap.sufficient, cheap.result.cost.data_passes) == (True, 0)
    far = what_if(base.state, base.memory, [RemoveData([many])])
    assert not far.sufficient
    left = rows.take(~torch.isin(rows.key, many.key))
    sure = what_if(base.state, base.memory, [RemoveData([many])], retained=[left])
    assert sure.sufficient
    exact = refit(left.x.numpy(), left.y[:, 0].numpy(), 2.0)
    tight = what_if(
        base.state, base.memory, [RemoveData([many])], retained=[left], options=WhatIfOptions(tolerance=1e-6)
    )
    assert tight.result.state.w.numpy() == pytest.approx(np.r_[exact.coef_[0], exact.intercept_], rel=1e-4, abs=1e-6)
    assert torch.equal(base.state.w, fitted().state.w)  # nothing of it was changed


def test_what_if_of_another_penalty_and_architecture() -> None:
    x, y = tabular()
    rows, base = examples(x, y), fitted()
    penalty = what_if(base.state, base.memory, [ChangeRegularizer({"kind": "l2", "delta": 3.0})], retained=[rows])
    exact = refit(x, y, 3.0)
    assert penalty.result.state.w.numpy() == pytest.approx(np.r_[exact.coef_[0], exact.intercept_], rel=0.05, abs=0.02)
    curved = ChangeModel({"kind": "linear", "degree": 2})
    assert not what_if(base.state, base.memory, [curved]).sufficient
    new = Examples(torch.tensor([9999]), rows.x[:1] + 0.1, rows.y[:1])
    other = what_if(base.state, base.memory, [curved, AddData([new])], retained=[rows, new])
    assert other.sufficient
    assert other.result.state.spec["architecture"] == {"kind": "linear", "degree": 2}
    assert other.result.state.count == len(rows) + 1
