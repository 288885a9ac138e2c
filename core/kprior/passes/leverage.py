"""Leverage: how far a row can move the curvature of a GLM, as its length in the norm of an inverse Hessian."""

import torch
from torch import Tensor

from core.kprior.curvature import cholesky
from core.kprior.curvature.full import MOSTLY_USED, used_features
from core.kprior.model.predictor import Predictor

PRODUCT_NUMBERS = 2**18
"""Size of the whitened rows of one step, which fit into a processor's cache."""


def whitener(H: Tensor) -> Tensor:
    """L^-1 of H = L L': (P, P). A row times its transpose has the length of the row in the norm of H^-1."""
    eye = torch.eye(len(H), dtype=H.dtype, device=H.device)
    inverse: Tensor = torch.linalg.solve_triangular(cholesky(H), eye, upper=False)
    return inverse


def leverage_roots(root: Tensor, outputs: int, coupled: bool = True) -> Tensor:
    """(pairs, D, D) factors of `spread_leverage`: one for each pair of classes, or for each separate output.

    The curvature of a softmax depends only on differences of outputs: for classes k, l that is |(e_k - e_l) phi_i|^2 in
    H^-1, a quadratic form in phi_i. `root` is a `whitener`.
    """
    if outputs == 1:
        return root[None]
    blocks = root.view(len(root), outputs, -1).transpose(0, 1)  # (K, P, D)
    if coupled:
        first, second = torch.triu_indices(outputs, outputs, 1, device=root.device)
        blocks = blocks[first] - blocks[second]
    roots: Tensor = torch.linalg.qr(blocks, mode="r")[1]
    return roots


def spread_leverage(phi: Tensor, roots: Tensor) -> Tensor:
    """max_v spread(phi_i' v)^2 over |v|_H <= 1, for each row: (n, D), (pairs, D, D) -> (n,).

    For one output it is |phi_i|^2 in H^-1; for several, the maximum over outputs, or over pairs of a softmax's classes.
    """
    used = used_features(phi)
    if int(used.sum()) < MOSTLY_USED * len(used):
        # without flags of values that are never missing, and categories that no row has
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
    """How far each row can move the curvature: its `spread_leverage`, divided by its squared slack for a kinked loss.

    A row of a kinked loss keeps its curvature along all v with |v|_H < 1 / sqrt(result): (n, D), (n, K) -> (n,).
    """
    family, spread = predictor.family, spread_leverage(phi, roots)
    if not family.kinked:
        return spread
    f = phi @ w.view(family.outputs, -1).T
    # allow for the rounding error of f
    lost = (phi.shape[1] + 3) * torch.finfo(f.dtype).eps * phi.norm(dim=1) * w.norm()
    slack = (family.slack(y.to(f), f)[:, 0] - lost).clamp(min=0)
    return torch.where(spread > 0, spread / slack**2, 0.0)


def largest_ratio(above: Tensor, root: Tensor) -> float:
    """The smallest t with `above` <= t H, where `root` is the `whitener` of H."""
    whole = root @ above @ root.T
    return float(torch.linalg.eigvalsh((whole + whole.T) / 2)[-1])
