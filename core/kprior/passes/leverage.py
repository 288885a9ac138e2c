"""How far a row of a GLM can move its curvature: its length in the norm of an inverse Hessian."""

from __future__ import annotations

import torch
from torch import Tensor

from core.kprior.curvature import cholesky
from core.kprior.curvature.full import used_features
from core.kprior.model.predictor import Predictor

PRODUCT_NUMBERS = 2**18
"""Numbers of a step's whitened rows: what stays in a processor's cache."""


def whitener(H: Tensor) -> Tensor:
    """L^-1 of H = L L': (P, P). Rows times its transpose have, as their length, that in the norm of H^-1."""
    eye = torch.eye(len(H), dtype=H.dtype, device=H.device)
    inverse: Tensor = torch.linalg.solve_triangular(cholesky(H), eye, upper=False)
    return inverse


def leverage_roots(root: Tensor, outputs: int) -> Tensor:
    """(pairs, D, D) what `spread_leverage` multiplies rows by, for each pair of classes; one matrix for one output.

    A softmax's curvature knows differences of outputs alone: of a pair of classes k, l that is |(e_k - e_l) phi_i|^2 in
    H^-1, a quadratic form in phi_i. `root` is a `whitener`.
    """
    if outputs == 1:
        return root[None]
    blocks = root.view(len(root), outputs, -1).transpose(0, 1)  # (K, P, D)
    first, second = torch.triu_indices(outputs, outputs, 1, device=root.device)
    roots: Tensor = torch.linalg.qr(blocks[first] - blocks[second], mode="r")[1]
    return roots


def spread_leverage(phi: Tensor, roots: Tensor) -> Tensor:
    """max_v spread(phi_i' v)^2 over |v|_H <= 1, for each row: (n, D), (pairs, D, D) -> (n,).

    For one output |phi_i|^2 in H^-1; for a softmax the largest of all pairs of classes. `roots` are `leverage_roots`.
    """
    used = used_features(phi)
    if not bool(used.all()):  # flags of what is never missing, and values that no row has
        phi, roots = phi[:, used], torch.linalg.qr(roots[:, :, used], mode="r")[1]
    pairs, size, _ = roots.shape
    flat = roots.reshape(pairs * size, -1).T.contiguous()
    out = torch.empty(len(phi), dtype=phi.dtype, device=phi.device)
    step = max(16, PRODUCT_NUMBERS // (pairs * size))
    for start in range(0, len(phi), step):
        white = (phi[start : start + step] @ flat).view(-1, pairs, size)
        out[start : start + step] = white.square_().sum(2).amax(1)
    return out


def leverages(predictor: Predictor, w: Tensor, phi: Tensor, y: Tensor, roots: Tensor) -> Tensor:
    """How far each row can move the curvature: its `spread_leverage`; of a kinked loss, over its slack squared.

    Such a row keeps its curvature along all v with |v|_H below the inverse of its root: (n, D), (n, K) -> (n,).
    """
    family, spread = predictor.family, spread_leverage(phi, roots)
    if not family.kinked:
        return spread
    f = phi @ w.view(family.outputs, -1).T
    # what rounding can have done to f does not count
    lost = (phi.shape[1] + 3) * torch.finfo(f.dtype).eps * phi.norm(dim=1) * w.norm()
    slack = (family.slack(y.to(f), f)[:, 0] - lost).clamp(min=0)
    return torch.where(spread > 0, spread / slack**2, 0.0)


def largest_ratio(above: Tensor, root: Tensor) -> float:
    """The smallest t with `above` <= t H, H given by its `whitener`."""
    whole = root @ above @ root.T
    return float(torch.linalg.eigvalsh((whole + whole.T) / 2)[-1])
