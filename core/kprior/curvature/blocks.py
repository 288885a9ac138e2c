"""One block of curvature for each output: what of the whole matrix lies on its diagonal."""

from __future__ import annotations

from collections.abc import Callable
from typing import Self

import torch
from torch import Tensor

from core.kprior.curvature.base import Curvature, cholesky
from core.kprior.data.examples import Examples
from core.kprior.model.predictor import Predictor


class Blocks(Curvature):
    """G_k = sum_i h'_kk phi_i phi_i' for each output k of a GLM, or an estimate of it from drawn rows.

    Drawn rows are known by their keys, so that what an example had part in can be taken away again.
    """

    kind = "blocks"

    def __init__(self, matrices: Tensor, drawn: Tensor, share: Tensor) -> None:
        self.matrices = matrices
        """(K, D, D) float32."""
        self.drawn = drawn
        """(K, m) keys of the rows that an estimate is made of; -1 where one was taken away."""
        self.share = share
        """(K,) what each of them counts."""

    @classmethod
    def zeros(cls, predictor: Predictor) -> Self:
        if not predictor.linear:
            raise ValueError("curvature in blocks is for linear models")
        K = predictor.family.outputs
        D = predictor.size // K
        device = predictor.device
        matrices = torch.zeros(K, D, D, dtype=torch.float32, device=device)
        return cls(matrices, torch.zeros(K, 0, dtype=torch.long), torch.zeros(K, dtype=torch.float64, device=device))

    @classmethod
    def estimate(
        cls, predictor: Predictor, w: Tensor, sample: Examples, count: float, most: int, generator: torch.Generator
    ) -> Self:
        """The blocks of `count` rows from a random sample of them, whose x are features (n, D) float32.

        For each output `most` rows are drawn by how unsure it is of them: each stands for the same share of the sum.
        """
        blocks = cls.zeros(predictor)
        K, D = blocks.matrices.shape[:2]
        f = sample.x @ w.view(K, D).to(sample.x).T
        variance = predictor.family.variance(f).double()
        scale = count / max(1, len(sample))
        blocks.drawn = torch.full((K, most), -1)
        for k in range(K):
            summed = variance[:, k].cumsum(0)
            total = float(summed[-1]) if len(summed) else 0.0
            if total <= 0:
                continue
            u = (torch.rand(most, generator=generator, dtype=torch.float64) * total).to(summed)
            chosen = torch.searchsorted(summed, u).clamp(max=len(summed) - 1)
            index, times = chosen.unique(return_counts=True)
            blocks.share[k] = scale * total / most
            rows = sample.x[index] * (times * blocks.share[k]).sqrt().to(sample.x)[:, None]
            blocks.matrices[k] = rows.T @ rows
            blocks.drawn[k] = sample.key[chosen.cpu()]
        return blocks

    def forget(self, key: Tensor, phi: Tensor) -> None:
        """Take away what examples (keys, features) had part in, in place."""
        for i, one in enumerate(key.tolist()):
            times = (self.drawn == one).sum(1)
            for k in torch.nonzero(times)[:, 0].tolist():
                row = phi[i].to(self.matrices)
                self.matrices[k] -= (float(times[k]) * float(self.share[k])) * torch.outer(row, row)
                self.drawn[k][self.drawn[k] == one] = -1

    def add(self, predictor: Predictor, w: Tensor, x: Tensor, weight: Tensor | None = None) -> None:
        phi = predictor.features(x)
        variance = predictor.family.variance(phi @ w.view(predictor.family.outputs, -1).T)
        if weight is not None:
            variance = variance * weight[:, None]
        for k in range(len(self.matrices)):
            self.matrices[k] += ((phi * variance[:, k, None]).T @ phi).float()

    def merge(self, other: Self) -> None:
        self.matrices += other.matrices

    def product(self, v: Tensor) -> Tensor:
        K, D = self.matrices.shape[:2]
        return torch.einsum("kde,ke->kd", self.matrices, v.view(K, D).to(self.matrices)).reshape(-1).to(v)

    def clip(self) -> None:
        for k, matrix in enumerate(self.matrices):
            values, vectors = torch.linalg.eigh(matrix.double())
            if bool(values[0] < 0):
                self.matrices[k] = ((vectors * values.clamp(min=0)) @ vectors.T).float()

    def inverse(self, delta: Tensor) -> Callable[[Tensor], Tensor]:
        K, D = self.matrices.shape[:2]
        # a free weight's block may be singular: any small penalty will do, where only speed is at stake
        ridge = float(delta[delta > 0].min()) if bool((delta > 0).any()) else 1e-3
        penalty = delta.view(K, D).clamp(min=ridge).to(self.matrices)
        factors = [cholesky(matrix + torch.diag(penalty[k])) for k, matrix in enumerate(self.matrices)]

        def solve(v: Tensor) -> Tensor:
            right = v.view(K, D).to(self.matrices)
            solved = [torch.cholesky_solve(right[k][:, None], factor)[:, 0] for k, factor in enumerate(factors)]
            return torch.stack(solved).reshape(-1).to(v)

        return solve

    def tensors(self) -> dict[str, Tensor]:
        return {"matrices": self.matrices, "drawn": self.drawn, "share": self.share}

    @classmethod
    def from_tensors(cls, tensors: dict[str, Tensor], predictor: Predictor) -> Self:
        return cls(tensors["matrices"], tensors["drawn"].cpu(), tensors["share"])
