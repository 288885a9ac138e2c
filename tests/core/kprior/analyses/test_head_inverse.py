"""The inverse Hessian of a head, against a direct solution."""

from __future__ import annotations

import pytest
import torch

from core.kprior import Examples, train
from core.kprior.analyses.head import HeadData, head_of
from core.kprior.analyses.head_curvature import HeadCurvature


@pytest.mark.parametrize("penalize_bias", [True, False])
@pytest.mark.parametrize("classes", [2, 4])
def test_inverse_solves_with_the_hessian(classes: int, penalize_bias: bool) -> None:
    generator = torch.Generator().manual_seed(classes)
    x = torch.randn(60, 3, generator=generator, dtype=torch.float64)
    y = torch.nn.functional.one_hot(torch.randint(0, classes, (60,), generator=generator), classes).double()
    rows = Examples(torch.arange(60), x, y)
    state = train(
        {
            "input": {"kind": "vector", "dim": 3},
            "target": {"kind": "classes", "values": list(range(classes))},
            "architecture": {"kind": "linear"},
            "regularizer": {"kind": "l2", "delta": 0.5, "penalize_bias": penalize_bias},
        },
        [rows],
    ).state
    head = head_of(state)
    found = HeadCurvature.measure(head, HeadData(head, [rows]))
    inverse, H = found.inverse(head), head.complete(found.matrix)
    K = head.outputs
    g = torch.randn(5, head.size, generator=generator, dtype=torch.float64)
    if not penalize_bias:  # the gradient of the biases of a softmax sums to zero
        g.view(5, K, -1)[:, :, -1] -= g.view(5, K, -1)[:, :, -1].mean(1, keepdim=True)
    truth = torch.linalg.solve(H, g.T).T
    torch.testing.assert_close(inverse.solve(g), truth, rtol=1e-4, atol=1e-5)

    phi = head.features(x)
    blocks = torch.linalg.inv(H).view(K, len(phi[0]), K, -1)
    whole = torch.einsum("nd,kdle,ne->nkl", phi, blocks, phi)
    r = torch.randn(60, K, generator=generator, dtype=torch.float64)
    r -= r.mean(1, keepdim=True)  # as a residual of a softmax
    moved = inverse.expand((inverse.leverages(phi) @ inverse.contrast(r)[:, :, None])[:, :, 0])
    torch.testing.assert_close(moved, (whole @ r[:, :, None])[:, :, 0], rtol=1e-4, atol=1e-5)
