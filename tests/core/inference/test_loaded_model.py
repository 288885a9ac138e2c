"""A loaded model predicts what the trained one predicts, whatever encodes its inputs."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from core.inference.loaded_model import LoadedModel
from core.kprior import Examples, State, train

SCALE = {"kind": "scale", "mean": [0.5, -1.0], "scale": [2.0, 3.0]}
STEPS = {"steps": [SCALE], "features": ["a", "b"], "trained_on": "other"}


@pytest.mark.parametrize("target", ["number", "binary"])
@pytest.mark.parametrize("given", [{}, {"transform": STEPS}], ids=["plain", "with steps"])
def test_a_loaded_model_of_a_vector_predicts_what_the_trained_one_does(target: str, given: dict[str, Any]) -> None:
    x = torch.randn(60, 2, generator=torch.Generator().manual_seed(0))
    score = (x @ torch.tensor([[1.0], [-2.0]])).double()
    y = score if target == "number" else (score > 0).double()
    spec: Any = {"input": {"kind": "vector", "dim": 2, **given}, "target": {"kind": target}}
    spec |= {"architecture": {"kind": "linear"}, "regularizer": {"kind": "l2", "delta": 1.0}}
    state = train(spec, [Examples(torch.arange(60), x, y)]).state
    loaded = LoadedModel.from_state(State.from_bytes(state.to_bytes()))
    expected = state.predictor.family.mean(state.predictor.outputs(state.w, x)).numpy()
    np.testing.assert_allclose(loaded.predict_means(x.numpy()), expected, rtol=1e-9)


@pytest.mark.parametrize("target", ["binary", "classes"])
def test_a_loaded_model_of_a_table_predicts_what_the_trained_one_does(target: str) -> None:
    """Numbers, a boolean and categories; some are missing, and some categories were never seen."""
    generator = torch.Generator().manual_seed(0)
    columns: list[dict[str, Any]] = [{"name": "age", "type": "number"}, {"name": "new", "type": "boolean"}]
    columns += [
        {"name": "city", "type": "category", "values": ["a", "b", "c"], "other": True},
        {"name": "plan", "type": "category", "values": ["free", "other"], "other": True},
        {"name": "land", "type": "category", "values": ["x", "y"]},
    ]
    sizes = (3, 2, 2)
    codes = [torch.randint(-1 if i == 0 else 0, size, (200,), generator=generator) for i, size in enumerate(sizes)]
    numbers = [5 * torch.randn(200, generator=generator), torch.randint(0, 2, (200,), generator=generator)]
    x = torch.stack([part.double() for part in (*numbers, *codes)], 1)
    x[torch.rand(x.shape, generator=generator) < 0.1] = torch.nan
    label = torch.randint(0, 3, (200,), generator=generator)
    y = torch.nn.functional.one_hot(label).double() if target == "classes" else (label[:, None] > 0).double()
    kind = {"kind": "classes", "values": ["p", "q", "r"]} if target == "classes" else {"kind": "binary"}
    spec: Any = {"input": {"kind": "table", "columns": columns}, "target": kind}
    spec |= {"architecture": {"kind": "linear"}, "regularizer": {"kind": "l2", "delta": 1.0}}
    state = train(spec, [Examples(torch.arange(200), x, y)]).state
    loaded = LoadedModel.from_state(State.from_bytes(state.to_bytes()))
    expected = state.predictor.family.mean(state.predictor.outputs(state.w, x)).numpy()
    np.testing.assert_allclose(loaded.predict_means(x.numpy()), expected, rtol=1e-12)
    whole = x[~x.isnan().any(1)]
    expected = state.predictor.family.mean(state.predictor.outputs(state.w, whole)).numpy()
    np.testing.assert_allclose(loaded.predict_means(whole.numpy()), expected, rtol=1e-12)
