"""The whole matrix: exact, for GLMs and other small models."""

from __future__ import annotations

from collections.abc import Callable
from typing import Self

import torch
from torch import Tensor

from core.kprior.curvature.base import Curvature, cholesky, ggn_rows, per_row, row_chunks
from core.kprior.model.families import Family
from core.kprior.model.predictor import Predictor


class Full(Curvature):
    """The whole matrix."""

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

    def merge(self, other: Self) -> None:
        self.matrix += other.matrix

    def product(self, v: Tensor) -> Tensor:
        return self.matrix @ v

    def clip(self) -> None:
        ridge = 1e-12 * self.matrix.diagonal().mean().abs() + 1e-300
        whole = self.matrix + ridge * torch.eye(len(self.matrix)).to(self.matrix)
        if int(torch.linalg.cholesky_ex(whole)[1]) == 0:
            return  # the usual case, at a tenth of the price
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
    except ArithmeticError:  # a model that is sure of everything has nothing but rounding here
        whole = Full(total.clone())
        whole.clip()
        factor = cholesky(whole.matrix + 1e3 * ridge * eye)
    half = torch.linalg.solve_triangular(factor, part, upper=False)
    whole = torch.linalg.solve_triangular(factor, half.T.contiguous(), upper=False)
    top = float(torch.linalg.eigvalsh((whole + whole.T) / 2)[-1])
    return 1 / max(1.0, top)


def glm_hessian(phi: Tensor, family: Family, f: Tensor, weight: Tensor | None = None) -> Tensor:
    """sum_i v_i L_i (x) phi_i phi_i' for a GLM, L = h'(f): (n, D), (n, K) -> (K D, K D)."""
    K, D = family.outputs, phi.shape[1]
    out = torch.zeros(K, D, K, D, dtype=phi.dtype, device=phi.device)
    for rows, hessian in family.hessians(f):
        if weight is not None:
            hessian = hessian * weight[rows, None, None]
        chunk = phi[rows]
        if K > D:  # one large product instead of many small ones
            pairs = (chunk[:, :, None] * chunk[:, None, :]).reshape(len(chunk), -1)
            out += (hessian.reshape(len(chunk), -1).T @ pairs).view(K, K, D, D).transpose(1, 2)
            continue
        for k in range(K):
            for j in range(k + 1):
                block = (chunk * hessian[:, k, j, None]).T @ chunk
                out[k, :, j] += block
                if j < k:
                    out[j, :, k] += block  # phi' diag phi is symmetric, so the mirrored block is the same
    return out.reshape(K * D, K * D)
