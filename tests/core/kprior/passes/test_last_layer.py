"""The estimate of the last layer's curvature leaves out only rows that hardly count."""

from __future__ import annotations

import pytest
import torch

from core.kprior import Predictor
from core.kprior.passes import last_layer
from core.kprior.passes.last_layer import IGNORED_CURVATURE, estimate_last_layer
from tests.core.kprior.problems import FAMILIES, examples_of, l2, spec_of


@pytest.mark.parametrize("kind", FAMILIES)
def test_an_estimate_leaves_out_less_than_it_may(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    data = examples_of(kind, 300, 3, 1)
    predictor = Predictor(spec_of(kind, 3, {"kind": "mlp", "hidden": [6, 5]}, l2(0.5)))  # type: ignore[arg-type]
    w = 2 * predictor.initial_weights()
    found = estimate_last_layer(predictor, w, [(data, 600)])
    monkeypatch.setattr(last_layer, "IGNORED_CURVATURE", 0.0)
    whole = estimate_last_layer(predictor, w, [(data, 600)])
    assert found is not None
    assert whole is not None
    assert torch.equal(found.value, whole.value)
    missing = (whole.curvature - found.curvature).double()
    trace = float(whole.curvature.trace())
    assert 0 <= float(missing.trace()) <= IGNORED_CURVATURE * trace
    assert float(torch.linalg.eigvalsh(missing).min()) >= -1e-5 * trace
