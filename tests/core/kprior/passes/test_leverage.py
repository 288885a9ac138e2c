"""How far a row can move the curvature, against the definition."""

from __future__ import annotations

import pytest
import torch

from core.kprior.passes.leverage import leverage_roots, spread_leverage, whitener


@pytest.mark.parametrize("outputs", [1, 2, 4])
@pytest.mark.parametrize("empty", [0, 2])
def test_leverage_is_the_largest_of_all_pairs_of_classes(outputs: int, empty: int) -> None:
    generator = torch.Generator().manual_seed(0)
    phi = torch.randn(50, 5, generator=generator, dtype=torch.float64)
    phi[:, :empty] = 0
    A = torch.randn(5 * outputs, 80, generator=generator, dtype=torch.float64)
    H = A @ A.T
    inverse = torch.linalg.inv(H)
    eye = torch.eye(outputs, dtype=torch.float64)
    pairs = [eye[0]] if outputs == 1 else [eye[k] - eye[j] for k in range(outputs) for j in range(k)]
    whole = torch.stack([torch.stack([torch.kron(pair, row) for pair in pairs]) for row in phi])
    truth = torch.einsum("npi,ij,npj->np", whole, inverse, whole).amax(1)
    torch.testing.assert_close(spread_leverage(phi, leverage_roots(whitener(H), outputs)), truth)
