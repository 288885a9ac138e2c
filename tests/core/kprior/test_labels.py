"""Targets of several labels at once: one logistic regression for each label, on the same rows and features."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.linear_model import LogisticRegression
from sklearn.multiclass import OneVsRestClassifier

from core.kprior import (
    AddData,
    ChangeInput,
    ChangeModel,
    ChangeRegularizer,
    ChangeTarget,
    Examples,
    MemoryPolicy,
    RemoveData,
    State,
    adapt,
    certify,
    refine,
    refine_for_erasure,
    train,
)
from core.kprior.certificate.certificate import Certificate
from core.kprior.data.label_sets import recode_labels, to_codes, to_matrix
from core.kprior.data.schema_conversion import input_conversion
from core.kprior.state.posterior import laplace
from tests.core.kprior import oracles
from tests.core.kprior.problems import l2

VALUES = ["red", "green", "blue"]
DIM = 3


def spec_of(values: list[str] = VALUES, dim: int = DIM, **more: Any) -> dict[str, Any]:
    target = {"kind": "labels", "values": values}
    spec = {"input": {"kind": "vector", "dim": dim}, "target": target, "architecture": {"kind": "linear"}}
    return {**spec, "regularizer": l2(1.0), **more}


def examples_of(n: int, seed: int = 0, dim: int = DIM, labels: int = 3) -> Examples:
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(n, dim))
    f = x @ rng.normal(size=(dim, labels)) + rng.normal(size=labels) * 0.5
    y = rng.random((n, labels)) < 1 / (1 + np.exp(-f))
    y[0], y[1] = True, False  # each label occurs, and is missing
    return Examples(torch.arange(n), torch.from_numpy(x), torch.from_numpy(y.astype(np.float64)))


def fit(data: Examples, delta: float) -> torch.Tensor:
    """(K, D + 1) scikit-learn's weights, one row for each label."""
    model = OneVsRestClassifier(LogisticRegression(C=1 / delta, solver="newton-cholesky", tol=1e-12))
    model.fit(data.x.numpy(), data.y.numpy())
    rows = [np.append(one.coef_[0], one.intercept_) for one in model.estimators_]
    return torch.from_numpy(np.stack(rows))


def assert_covered(state: State, certificate: Certificate, truth: torch.Tensor, slack: float = 1e-6) -> None:
    """Every label is within its own bound, and all of them are within the bound of the model."""
    apart = state.w.view(len(truth), -1) - truth
    assert certificate.bound is not None
    assert float(apart.norm()) <= certificate.bound + slack
    assert certificate.labels is not None
    for label, gap in zip(certificate.labels.values(), apart, strict=True):
        assert label.bound is not None
        assert label.bound <= certificate.bound
        assert float(gap.norm()) <= label.bound + slack


@settings(max_examples=10)
@given(seed=st.integers(0, 1000), fraction=st.sampled_from([0.1, 1.0]), delta=st.sampled_from([0.3, 3.0]))
def test_every_label_is_within_its_bound_of_one_versus_rest(seed: int, fraction: float, delta: float) -> None:
    data, policy = examples_of(100, seed), MemoryPolicy(fraction=fraction)
    first = data.take(torch.arange(80))
    trained = train(spec_of(), first.chunks(33), policy=policy)
    torch.testing.assert_close(trained.state.w.view(3, -1), fit(first, 1.0), atol=1e-6, rtol=1e-6)
    tasks = [
        AddData([data.take(torch.arange(80, 100))]),
        RemoveData([data.take(torch.arange(2, 8))]),
        ChangeRegularizer(l2(delta)),
    ]
    kept = data.take(~torch.isin(data.key, torch.arange(2, 8)))
    adapted = adapt(trained.state, trained.memory, tasks, policy=policy)
    if adapted.certificate is not None and adapted.certificate.bound is not None:
        assert_covered(adapted.state, adapted.certificate, fit(kept, delta))
    measured = certify(adapted.state, adapted.memory, [kept])
    assert_covered(measured.state, measured.certificate, fit(kept, delta))
    closer = refine(measured.state, measured.memory, [kept], tolerance=1e-6)
    assert closer.certificate.meets(1e-6)
    assert_covered(closer.state, closer.certificate, fit(kept, delta))
    again = State.from_bytes(closer.state.to_bytes())
    assert torch.equal(again.w, closer.state.w)


def test_labels_do_not_affect_each_other() -> None:
    data = examples_of(60)
    together = train(spec_of(), [data]).state.w.view(3, -1)
    binary = {**spec_of(), "target": {"kind": "binary"}}
    for k in range(3):
        alone = train(binary, [Examples(data.key, data.x, data.y[:, k : k + 1])]).state.w
        torch.testing.assert_close(together[k], alone, atol=1e-9, rtol=1e-9)


def test_a_single_label_is_a_binary_target() -> None:
    data = examples_of(60, labels=1)
    trained = train(spec_of(["only"]), [data])
    adapted = adapt(trained.state, trained.memory, [RemoveData([data.take(torch.arange(2, 6))])])
    kept = data.take(~torch.isin(data.key, torch.arange(2, 6)))
    measured = certify(adapted.state, adapted.memory, [kept])
    truth = LogisticRegression(C=1.0, solver="newton-cholesky", tol=1e-12).fit(kept.x.numpy(), kept.y[:, 0].numpy())
    expected = torch.from_numpy(np.append(truth.coef_[0], truth.intercept_))[None]
    assert_covered(measured.state, measured.certificate, expected)


def test_an_erasure_leaves_the_weights_of_a_retrain() -> None:
    data = examples_of(80)
    trained = train(spec_of(), [data])
    gone, kept = data.take(torch.arange(5, 9)), data.take(~torch.isin(data.key, torch.arange(5, 9)))
    adapted = adapt(trained.state, trained.memory, [RemoveData([gone])])
    found = refine_for_erasure(adapted.state, adapted.memory, [kept], tolerance=0.01, rounds=5)
    assert found is not None
    torch.testing.assert_close(found.state.w.view(3, -1), fit(kept, 1.0), atol=1e-5, rtol=1e-5)
    assert_covered(found.state, found.certificate, fit(kept, 1.0), slack=1e-5)


@pytest.mark.parametrize("penalize_bias", [False, True])
def test_a_wide_model_has_a_bound_for_each_label(penalize_bias: bool) -> None:
    data = examples_of(150, dim=400)
    trained = train(spec_of(dim=400, regularizer=l2(5.0, penalize_bias)), [data])
    truth = fit(data, 5.0)
    if penalize_bias:
        model = OneVsRestClassifier(LogisticRegression(C=1 / 5.0, solver="newton-cholesky", fit_intercept=False))
        ones = np.column_stack([data.x.numpy(), np.ones(len(data))])
        truth = torch.from_numpy(np.concatenate([one.coef_ for one in model.fit(ones, data.y.numpy()).estimators_]))
    assert trained.certificate is not None
    assert_covered(trained.state, trained.certificate, truth, slack=1e-4)
    kept = data.take(torch.arange(10, 150))
    adapted = adapt(trained.state, trained.memory, [RemoveData([data.take(torch.arange(10))])])
    refined = refine(adapted.state, adapted.memory, [kept], tolerance=0.01, rounds=30)
    assert refined.certificate.meets(0.01)


def test_a_label_that_is_added_needs_a_few_passes() -> None:
    data = examples_of(120)
    two = Examples(data.key, data.x, data.y[:, :2])
    trained = train(spec_of(VALUES[:2]), [two.take(torch.arange(90))])
    target = {"kind": "labels", "values": ["new", "green", "red"]}
    change = ChangeTarget(target, (2.0, 1.0))  # type: ignore[arg-type]
    old = Examples(two.key, two.x, torch.stack([torch.zeros(120).double(), two.y[:, 1], two.y[:, 0]], 1))
    y = old.y.clone()
    y[90:, 0] = data.y[90:, 2]
    now = Examples(data.key, data.x, y)
    adapted = adapt(trained.state, trained.memory, [change, AddData([now.take(torch.arange(90, 120))])])
    found = refine(adapted.state, adapted.memory, [now], tolerance=0.01, rounds=5)
    assert found.certificate.meets(0.01)
    assert_covered(found.state, found.certificate, fit(now, 1.0))


def test_the_uncertainty_of_a_label_is_that_of_a_binary_model() -> None:
    data = examples_of(60)
    state = train(spec_of(), [data]).state
    f, phi = state.predictor.outputs(state.w, data.x).numpy(), state.predictor.features(data.x).numpy()
    unsure = laplace(state).assess("bernoulli", f, phi)
    alone = train({**spec_of(), "target": {"kind": "binary"}}, [Examples(data.key, data.x, data.y[:, 1:2])]).state
    expected = laplace(alone).assess("bernoulli", f[:, 1:2], phi)
    np.testing.assert_allclose(unsure.std[:, 1], expected.std[:, 0], rtol=1e-4)
    np.testing.assert_allclose(unsure.high[:, 1], expected.high[:, 0], rtol=1e-4)


def test_sets_survive_their_codes() -> None:
    rng = np.random.default_rng(0)
    matrix = (rng.random((40, 50)) < 0.5).astype(float)
    matrix[0], matrix[1] = 1, 0
    np.testing.assert_array_equal(to_matrix(to_codes(matrix), 50), matrix)
    places = [float(place) for place in rng.permutation(50)]
    moved = to_matrix(recode_labels(places, to_codes(matrix)), 50)
    for old, new in enumerate(places):
        np.testing.assert_array_equal(moved[:, int(new)], matrix[:, old])


def test_other_features_end_within_their_bounds() -> None:
    data, policy = examples_of(150), MemoryPolicy(fraction=0.5)
    trained = train(spec_of(), [data], policy=policy)
    change = ChangeModel({"kind": "linear", "degree": 2})
    adapted = adapt(trained.state, trained.memory, [change], policy=policy)
    found = refine(adapted.state, adapted.memory, [data], tolerance=0.01, rounds=8, policy=policy)
    assert found.certificate.meets(0.01)
    squares = oracles.design_matrix(data.x, {"kind": "linear", "degree": 2})[:, :-1]
    assert_covered(found.state, found.certificate, fit(Examples(data.key, torch.from_numpy(squares), data.y), 1.0))


def test_a_new_column_keeps_the_bounds() -> None:
    columns: list[Any] = [{"name": name, "type": "number"} for name in "abc"]
    old: Any = {"kind": "table", "columns": columns[:2]}
    new: Any = {"kind": "table", "columns": [*columns[:2], {**columns[2], "default": 0}]}
    data = examples_of(100)
    before = Examples(data.key, data.x[:, :2].float(), data.y)
    trained = train({**spec_of(), "input": old}, [before.take(torch.arange(70))])
    conversion = input_conversion(old, new)
    assert conversion is not None
    late = Examples(data.key, data.x.float(), data.y).take(torch.arange(70, 100))
    plain: Any = {"kind": "table", "columns": columns}
    adapted = adapt(trained.state, trained.memory, [ChangeInput(plain, conversion), AddData([late])])
    early = torch.cat([before.x[:70], torch.zeros(70, 1)], 1)
    now = Examples(data.key, torch.cat([early, late.x]), data.y)
    found = refine(adapted.state, adapted.memory, [now], tolerance=0.01, rounds=5)
    assert found.certificate.meets(0.01)
    features = found.state.predictor.features(now.x)[:, :-1]
    assert_covered(found.state, found.certificate, fit(Examples(now.key, features, now.y), 1.0))
