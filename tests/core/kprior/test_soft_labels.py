"""Soft labels of a binary target: a row with label y is one row of class 1 and one of class 0, weighted y and 1 - y."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.linear_model import LogisticRegression

from core.kprior import AddData, ChangeRegularizer, Examples, MemoryPolicy, RemoveData, adapt, certify, train
from core.kprior.model.families import Bernoulli
from tests.core.kprior.problems import distance, examples_of, l2, relative_distance, spec_of


def soften(data: Examples, seed: int) -> Examples:
    """The rows with labels anywhere between 0 and 1, both ends included."""
    drawn = torch.from_numpy(np.random.default_rng(seed).beta(0.5, 0.5, (len(data), 1)))
    soft = torch.where(drawn < 0.1, 0.0, torch.where(drawn > 0.9, 1.0, drawn))
    return replace(data, y=soft)


def fit(data: Examples, delta: float) -> torch.Tensor:
    """scikit-learn on each row twice."""
    x, y = data.x.double().numpy(), data.y[:, 0].numpy()
    model = LogisticRegression(C=1 / delta, solver="newton-cholesky", tol=1e-12)
    labels = np.repeat([1, 0], len(x))
    model.fit(np.concatenate([x, x]), labels, sample_weight=np.concatenate([y, 1 - y]))
    return torch.from_numpy(np.append(model.coef_[0], model.intercept_))


@settings(max_examples=10)
@given(seed=st.integers(0, 1000), fraction=st.sampled_from([0.1, 1.0]), delta=st.sampled_from([0.3, 3.0]))
def test_a_history_of_soft_labels_ends_within_its_bound_of_scikit_learn(
    seed: int, fraction: float, delta: float
) -> None:
    data = soften(examples_of("binary", 90, 3, seed=seed), seed)
    policy, first = MemoryPolicy(fraction=fraction), data.take(torch.arange(70))
    trained = train(spec_of("binary", 3), [first], policy=policy)
    assert relative_distance(trained.state, fit(first, 1.0)) <= 1e-6
    tasks = [
        AddData([data.take(torch.arange(70, 90))]),
        RemoveData([data.take(torch.arange(10))]),
        ChangeRegularizer(l2(delta)),
    ]
    kept = data.take(torch.arange(10, 90))
    result = adapt(trained.state, trained.memory, tasks, policy=policy)
    bound = certify(result.state, result.memory, [kept]).certificate.bound
    assert bound is not None
    assert distance(result.state, fit(kept, delta)) <= bound + 1e-6


def test_the_loss_of_a_soft_label_is_the_mean_over_its_classes() -> None:
    family = Bernoulli()
    f = torch.linspace(-30, 30, 7, dtype=torch.float64)[:, None]
    y = torch.full_like(f, 0.3)
    expected = 0.3 * family.loss(torch.ones_like(f), f) + 0.7 * family.loss(torch.zeros_like(f), f)
    assert family.loss(y, f).tolist() == pytest.approx(expected.tolist())
