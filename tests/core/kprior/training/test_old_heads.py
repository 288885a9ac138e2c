"""Training of a linear model that starts from the head of another encoder: the same optimum, in fewer passes."""

from __future__ import annotations

import pytest
import torch

from core.kprior import Examples, Result, Training, train
from core.kprior.model.spec import Spec
from core.kprior.training.training import Predecessor


def spec_of(features: int, classes: int) -> Spec:
    target = {"kind": "classes", "values": list(range(classes))} if classes > 2 else {"kind": "binary"}
    given = {"input": {"kind": "vector", "dim": features}, "target": target, "architecture": {"kind": "linear"}}
    return {**given, "regularizer": {"kind": "l2", "delta": 2.0}}  # type: ignore[return-value,typeddict-item]


@pytest.mark.parametrize(("features", "classes"), [(20, 2), (260, 20)], ids=["dense", "wide"])
def test_the_optimum_is_the_same_from_every_old_head_and_near_ones_save_passes(features: int, classes: int) -> None:
    draw, n = torch.Generator().manual_seed(0), 400
    x = torch.randn(n, features, generator=draw)
    scores = x[:, :classes] if classes > 2 else torch.stack([x[:, 0], x[:, 1]], 1)
    label = (scores + torch.randn(scores.shape, generator=draw)).argmax(1)
    y = torch.nn.functional.one_hot(label, classes).double() if classes > 2 else label[:, None].double()
    spec, key = spec_of(features, classes), torch.arange(n)

    def fit(x: torch.Tensor, before: Result | None = None) -> Result:
        start = None if before is None else Predecessor(before.state, warm=True)
        return train(spec, [Examples(key, x, y)], training=Training(), predecessor=start)

    cold = fit(x)
    near, far = fit(x + 0.01 * torch.randn(x.shape, generator=draw)), fit(-5 * x.flip(1))
    for before in (near, far):
        warm = fit(x, before)
        assert warm.certificate is not None
        assert cold.certificate is not None
        bounds = [found.certificate.bound for found in (warm, cold) if found.certificate is not None]
        assert all(bound is not None for bound in bounds)
        assert float((warm.state.w - cold.state.w).norm()) <= sum(bound or 0.0 for bound in bounds) + 1e-9
        assert warm.certificate.relative is not None
        assert warm.certificate.relative < 0.01
        if before is near:
            assert warm.cost.data_passes < cold.cost.data_passes
