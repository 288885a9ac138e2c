"""How far a row of a GLM can move its curvature: its length in the norm of an inverse Hessian."""

from __future__ import annotations

import torch
from torch import Tensor

from core.kprior.curvature import cholesky

PRODUCT_NUMBERS = 2**23
"""Numbers of a step's whitened rows."""


def whitener(H: Tensor) -> Tensor:
    """L^-1 of H = L L': (P, P). Rows times its transpose have, as their length, that in the norm of H^-1."""
    eye = torch.eye(len(H), dtype=H.dtype, device=H.device)
    inverse: Tensor = torch.linalg.solve_triangular(cholesky(H), eye, upper=False)
    return inverse


def spread_leverage(phi: Tensor, root: Tensor) -> Tensor:
    """max_v spread(phi_i' v)^2 over |v|_H <= 1, for each row: (n, D), (P, P) -> (n,).

    For one output |phi_i|^2 in H^-1; for a softmax, whose curvature knows differences of outputs alone, the largest
    |(e_k - e_l) phi_i|^2 over pairs of classes. `root` is a `whitener`.
    """
    n, D = phi.shape
    K = len(root) // D
    if K == 1:
        return ((phi @ root.T) ** 2).sum(1)
    blocks = root.view(K * D, K, D).transpose(0, 1)  # (K, P, D)
    out = torch.empty(n, dtype=phi.dtype, device=phi.device)
    step = max(1, PRODUCT_NUMBERS // (K * K * D))
    for start in range(0, n, step):
        chunk = phi[start : start + step]
        white = torch.einsum("nd,kpd->nkp", chunk, blocks)
        gram = white @ white.transpose(1, 2)
        own = gram.diagonal(dim1=1, dim2=2)
        pairs = own[:, :, None] + own[:, None, :] - 2 * gram
        out[start : start + step] = pairs.amax((1, 2)).clamp(min=0)
    return out


def largest_ratio(above: Tensor, root: Tensor) -> float:
    """The smallest t with `above` <= t H, H given by its `whitener`."""
    whole = root @ above @ root.T
    return float(torch.linalg.eigvalsh((whole + whole.T) / 2)[-1])
