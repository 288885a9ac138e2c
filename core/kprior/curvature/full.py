"""The full matrix: exact, for GLMs and other small models."""

from collections.abc import Callable
from typing import Self

import torch
from torch import Tensor

from core.kprior.curvature.base import Curvature, cholesky, ggn_rows, per_row, row_chunks
from core.kprior.data.examples import Examples
from core.kprior.model.families import HESSIAN_NUMBERS, Family
from core.kprior.model.predictor import Predictor

HESSIAN_ROWS = 1000
"""Rows whose outer products are summed at a time: they fit into a processor's cache."""

MOSTLY_USED = 0.9
"""Below this share of features that any row has, the others are skipped; above it, copying costs more."""


class Full(Curvature):
    """The full matrix."""

    kind = "full"

    def __init__(self, matrix: Tensor) -> None:
        self.matrix = matrix

    @classmethod
    def zeros(cls, predictor: Predictor) -> Self:
        P = predictor.size
        return cls(torch.zeros(P, P, dtype=predictor.dtype, device=predictor.device))

    def add(self, predictor: Predictor, w: Tensor, x: Tensor, weight: Tensor | None = None) -> None:
        if predictor.linear:
            phi = predictor.features(x)
            self.matrix += glm_hessian(phi, predictor.family, phi @ predictor.unflatten(w)["weight"].T, weight)
            return
        step = row_chunks(predictor, len(x)).step
        for i in range(0, len(x), step):
            rows = ggn_rows(predictor, w, x[i : i + step])
            scaled = rows if weight is None else rows * per_row(weight[i : i + step], rows)
            self.matrix += scaled.T @ rows

    def add_rows(self, predictor: Predictor, w: Tensor, rows: Examples, weight: Tensor | None = None) -> None:
        if not (predictor.linear and predictor.family.kinked):
            self.add(predictor, w, rows.x, weight)
            return
        phi = predictor.features(rows.x)
        f = phi @ w.view(predictor.family.outputs, -1).T
        self.matrix += glm_hessian(phi, predictor.family, f, weight, rows.y.to(f))

    def merge(self, other: Self) -> None:
        self.matrix += other.matrix

    def product(self, v: Tensor) -> Tensor:
        return self.matrix @ v

    def clip(self) -> None:
        ridge = 1e-12 * self.matrix.diagonal().mean().abs() + 1e-300
        whole = self.matrix + ridge * torch.eye(len(self.matrix)).to(self.matrix)
        if int(torch.linalg.cholesky_ex(whole)[1]) == 0:
            return  # the usual case, ten times as fast
        values, vectors = torch.linalg.eigh(self.matrix)
        if bool(values[0] < 0):
            self.matrix = (vectors * values.clamp(min=0)) @ vectors.T

    def tensors(self) -> dict[str, Tensor]:
        return {"matrix": self.matrix}

    @classmethod
    def from_tensors(cls, tensors: dict[str, Tensor], predictor: Predictor) -> Self:
        return cls(tensors["matrix"])

    def inverse(self, delta: Tensor) -> Callable[[Tensor], Tensor]:
        factor = cholesky(self.matrix + torch.diag(delta))
        return lambda v: torch.cholesky_solve(v[:, None], factor)[:, 0]

    def dense(self, size: int) -> Tensor:
        return self.matrix


def balance(total: Tensor, part: Tensor) -> float:
    """The largest c <= 1 for which total - c part stays positive semi-definite."""
    eye = torch.eye(len(total)).to(total)
    ridge = 1e-9 * total.diagonal().mean().clamp(min=1e-30)
    try:
        factor = cholesky(total + ridge * eye)
    except ArithmeticError:  # for a model that is certain everywhere, the matrix is pure rounding error
        whole = Full(total.clone())
        whole.clip()
        factor = cholesky(whole.matrix + 1e3 * ridge * eye)
    half = torch.linalg.solve_triangular(factor, part, upper=False)
    whole = torch.linalg.solve_triangular(factor, half.T.contiguous(), upper=False)
    top = float(torch.linalg.eigvalsh((whole + whole.T) / 2)[-1])
    return 1 / max(1.0, top)


def glm_hessian(
    phi: Tensor, family: Family, f: Tensor, weight: Tensor | None = None, y: Tensor | None = None
) -> Tensor:
    """sum_i v_i L_i (x) phi_i phi_i' for a GLM, L = h'(f): (n, D), (n, K) -> (K D, K D).

    A kinked loss needs the targets y (n, K).
    """
    if family.kinked and y is None:
        raise ValueError(f"The curvature of the loss {family.name!r} depends on the targets; pass y.")
    K, D = family.outputs, phi.shape[1]
    used = torch.nonzero(used_features(phi))[
        :, 0
    ]  # skip features that are zero in all rows, such as flags of values that are never missing
    skips = len(used) < MOSTLY_USED * D
    if skips:
        phi = phi[:, used]
    if family.coupled:
        parts = softmax_hessian(phi, family, f, weight)
    else:
        variance = family.variance(f) if y is None else family.curvature(y, f)
        parts = torch.block_diag(*[variance_hessian(phi, variance[:, k], weight) for k in range(K)])
    if not skips:
        return parts.reshape(K * D, K * D)
    places = (torch.arange(K, device=phi.device)[:, None] * D + used).reshape(-1)
    out = torch.zeros(K * D, K * D, dtype=phi.dtype, device=phi.device)
    out[places[:, None], places] = parts.reshape(len(places), len(places))
    return out


def used_features(phi: Tensor) -> Tensor:
    """(D,) which features are nonzero in any row; most are found in the first rows."""
    used = phi[:64].any(0)
    rest = torch.nonzero(~used)[:, 0]
    if len(rest):
        used[rest] = phi[64:, rest].any(0)
    return used


def variance_hessian(phi: Tensor, variance: Tensor, weight: Tensor | None) -> Tensor:
    """`glm_hessian` for one output, given L (n,): (D, D)."""
    if weight is not None:
        variance = variance * weight
    out = torch.zeros(phi.shape[1], phi.shape[1], dtype=phi.dtype, device=phi.device)
    for start in range(0, len(phi), HESSIAN_ROWS):
        chunk = phi[start : start + HESSIAN_ROWS]
        out.addmm_(chunk.T * variance[start : start + HESSIAN_ROWS], chunk)
    return out


def softmax_hessian(phi: Tensor, family: Family, f: Tensor, weight: Tensor | None) -> Tensor:
    """`glm_hessian` for classes: (K, D, K, D).

    L has -p_k p_l off the diagonal, and its rows sum to zero. It suffices to sum over pairs of classes, without
    cancellation.
    """
    K, D = family.outputs, phi.shape[1]
    first, second = torch.triu_indices(K, K, 1, device=phi.device)
    blocks = torch.zeros(len(first), D, D, dtype=phi.dtype, device=phi.device)
    step = max(1, min(HESSIAN_ROWS, HESSIAN_NUMBERS // len(first)))
    for start in range(0, len(phi), step):
        rows = slice(start, start + step)
        chunk, p = phi[rows], family.mean(f[rows])
        products = p[:, first] * p[:, second]
        if weight is not None:
            products = products * weight[rows, None]
        if K > D:  # one large product instead of many small ones
            squares = (chunk[:, :, None] * chunk[:, None, :]).reshape(len(chunk), -1)
            blocks += (products.T @ squares).view(-1, D, D)
            continue
        turned = chunk.T.contiguous()
        for block, product in zip(blocks, products.T.contiguous(), strict=True):
            block.addmm_(turned * product, chunk)
    out = torch.zeros(K, D, K, D, dtype=phi.dtype, device=phi.device)
    out[first, :, second] = out[second, :, first] = -blocks
    own = torch.arange(K, device=phi.device)
    diagonal = torch.zeros(K, D, D, dtype=phi.dtype, device=phi.device)
    diagonal.index_add_(0, first, blocks).index_add_(0, second, blocks)
    out[own, :, own] = diagonal
    return out
