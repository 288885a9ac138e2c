"""Penalties of single columns, against scikit-learn fits of columns that are scaled instead."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from core.kprior import AddData, ChangeModel, ChangeRegularizer, Examples, RemoveData, State, adapt, refine, train
from tests.core.kprior.oracles import Array, design_matrix, sklearn_fit
from tests.core.kprior.problems import (
    EVERYTHING,
    FAMILIES,
    LINEAR,
    QUADRATIC,
    TENTH,
    examples_of,
    l2,
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
    """With the bias penalised by 1, too: scaled features have one delta, 1."""
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
