"""Networks learn numbers and counts of any size: from scratch, and in the place of a linear model."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from core.kprior import ChangeModel, Examples, RemoveData, State, Training, adapt, train
from core.kprior.data.random_samples import draw_from
from tests.core.kprior.problems import rows, spec_of

MLP = {"kind": "mlp", "hidden": [50]}
X = torch.randn(1500, 3, generator=torch.Generator().manual_seed(0))
WAVE = torch.sin(X[:, :1]) + 0.5 * X[:, 1:2]
TARGETS = {
    "prices": ("number", 350_000 + 40_000 * WAVE),
    "kelvin": ("number", 300 + 3 * WAVE),
    "visits": ("count", (7 + 0.3 * WAVE).exp().round()),
}


def share_explained(state: State, y: Tensor) -> float:
    mean = state.predictor.family.mean(state.predictor.outputs(state.w, X[1200:])).double()
    return 1 - float((mean - y[1200:]).pow(2).mean() / y[1200:].var())


@pytest.mark.parametrize("name", ["prices", "kelvin", "visits"])
def test_a_network_learns_targets_of_any_size(name: str) -> None:
    kind, y = TARGETS[name]
    data = Examples(torch.arange(1500), X, y.double())
    assert share_explained(train(spec_of(kind, 3, MLP), [rows(data, 0, 1200)]).state, y) > 0.8


@pytest.mark.parametrize("name", ["prices", "visits"])
def test_a_network_made_from_a_linear_model_predicts_on_the_scale_of_the_targets(name: str) -> None:
    kind, y = TARGETS[name]
    data = Examples(torch.arange(1500), X, y.double())
    linear, kept = train(spec_of(kind, 3), [rows(data, 0, 1200)]), rows(data, 100, 1200)
    tasks = [ChangeModel(MLP), RemoveData([rows(data, 0, 100)])]
    adapted = adapt(linear.state, linear.memory, tasks, draw=draw_from(kept), holdout=[rows(data, 1200, 1500)])
    assert share_explained(adapted.state, y) > 0.8


@pytest.mark.parametrize("y", [torch.zeros(40, 1), torch.full((40, 1), 9.0)])
@pytest.mark.parametrize("kind", ["number", "count"])
def test_targets_that_are_all_the_same_can_be_learnt(kind: str, y: Tensor) -> None:
    data = Examples(torch.arange(40), X[:40], y.double())
    state = train(spec_of(kind, 3, MLP), [data], training=Training(max_epochs=20)).state
    assert bool(state.w.isfinite().all())
