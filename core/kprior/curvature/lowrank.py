"""The leading directions of the curvature, for models of up to some hundred thousand parameters."""

from __future__ import annotations

from collections.abc import Callable
from typing import Self

import torch
from torch import Tensor

from core.kprior.curvature.base import Curvature, cholesky, ggn_rows, per_row, row_chunks
from core.kprior.model.predictor import Predictor

RANK = 200


class LowRank(Curvature):
    """F'F with F of `rank` rows: leading directions of a running decomposition, truncated after each step.

    Truncation only takes away, so (while nothing is removed) F'F never exceeds G.
    """

    kind = "lowrank"

    def __init__(self, factor: Tensor, rank: int = RANK) -> None:
        self.factor = factor
        self.rank = rank

    @classmethod
    def zeros(cls, predictor: Predictor) -> Self:
        return cls(torch.zeros(0, predictor.size, dtype=predictor.dtype, device=predictor.device))

    def add(self, predictor: Predictor, w: Tensor, x: Tensor, weight: Tensor | None = None) -> None:
        step = min(row_chunks(predictor, len(x)).step, max(1, 2 * self.rank // predictor.family.outputs))
        for i in range(0, len(x), step):
            rows = ggn_rows(predictor, w, x[i : i + step])
            if weight is None:
                self._merge(rows, None)
            else:
                scale = per_row(weight[i : i + step].to(rows.dtype), rows)
                self._merge(rows * scale.abs().sqrt(), scale[:, 0].sign())

    def _merge(self, rows: Tensor, sign: Tensor | None) -> None:
        """F'F + rows' diag(sign) rows, by the eigenvalues of its small twin in the span of the rows."""
        stack = torch.cat([self.factor, rows])
        if len(stack) == 0:
            return
        # float32 Gram matrices lose half the digits; the stack is short, so double costs little
        gram = (stack @ stack.T).double()
        values, vectors = torch.linalg.eigh(gram)
        keep = values > values[-1].clamp(min=0) * 1e-12
        values, vectors = values[keep], vectors[:, keep]
        if sign is None:
            new_values, basis = values, vectors / values.sqrt()
        else:
            signs = torch.cat([torch.ones(len(self.factor), device=sign.device), sign]).double()
            half = vectors * values.sqrt()
            new_values, inner = torch.linalg.eigh(half.T @ (signs[:, None] * half))
            basis = (vectors / values.sqrt()) @ inner
        top = torch.argsort(new_values, descending=True)[: self.rank]
        top = top[new_values[top] > 0]
        coefficients = basis[:, top] * new_values[top].sqrt()
        self.factor = coefficients.T.to(stack.dtype) @ stack

    def merge(self, other: Self) -> None:
        if len(self.factor) == 0:
            self.factor = other.factor
        else:
            self._merge(other.factor, None)

    def product(self, v: Tensor) -> Tensor:
        return self.factor.T @ (self.factor @ v)

    def clip(self) -> None:
        """Nothing to do: F'F has no negative eigenvalues."""

    def leverage(self, delta: Tensor) -> Callable[[Tensor], Tensor]:
        # one ridge for all parameters makes Woodbury's formula a small matrix, also where a bias has none
        ridge = delta[delta > 0].min() if bool((delta > 0).any()) else delta.new_tensor(1.0)
        inner = self.factor @ self.factor.T
        factor = cholesky(inner + ridge * torch.eye(len(inner)).to(inner))

        def of(rows: Tensor) -> Tensor:
            explained: Tensor = torch.linalg.solve_triangular(factor, self.factor @ rows.T, upper=False)
            rest = (rows**2).sum(1) - (explained**2).sum(0)
            return rest.clamp(min=0) / ridge

        return of

    def copy(self, predictor: Predictor) -> Self:
        return type(self)(self.factor.clone(), self.rank)

    def tensors(self) -> dict[str, Tensor]:
        return {"factor": self.factor}

    @classmethod
    def from_tensors(cls, tensors: dict[str, Tensor], predictor: Predictor) -> Self:
        return cls(tensors["factor"])
