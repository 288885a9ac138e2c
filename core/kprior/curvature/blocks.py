"""One block of curvature for each output: the diagonal blocks of the full matrix."""

import math
from collections.abc import Callable
from typing import Self

import torch
from torch import Tensor

from core.kprior.curvature.base import Curvature
from core.kprior.curvature.leaf_sums import leaf_hessian
from core.kprior.data.examples import Examples
from core.kprior.model.predictor import Predictor
from core.kprior.model.tree_leaves import LeafRows

MAX_ADDED_ROWS = 1_000
"""Largest number of added rows that a block uses at a time."""


class Blocks(Curvature):
    """G_k = sum_i h'_kk phi_i phi_i' for each output k of a GLM, or an estimate of it from sampled rows.

    The keys of sampled rows are stored, so that the contribution of an example can be removed again.
    """

    kind = "blocks"

    def __init__(self, matrices: Tensor, drawn: Tensor, weight: Tensor, count: Tensor) -> None:
        self.matrices = matrices
        """(K, D, D) float32."""
        self.drawn = drawn
        """(K, m) keys of the sampled rows; -1 for none."""
        self.weight = weight
        """(K, m) weights of the sampled rows."""
        self.count = count
        """() number of rows that the estimate represents."""

    @classmethod
    def zeros(cls, predictor: Predictor) -> Self:
        if not predictor.linear:
            raise ValueError("Curvature in blocks is only for linear models.")
        K = predictor.family.outputs
        D = predictor.size // K
        matrices = torch.zeros(K, D, D, dtype=torch.float32, device=predictor.device)
        none = torch.zeros(K, 0)
        return cls(matrices, none.long(), none.to(matrices), torch.zeros((), dtype=torch.float64))

    @classmethod
    def estimate(
        cls,
        predictor: Predictor,
        w: Tensor,
        sample: Examples,
        count: float,
        rows_per_output: int,
        generator: torch.Generator,
    ) -> Self:
        """Estimate the blocks of `count` rows from a random sample, whose x are features (n, D) in float32, or slots.

        For each output, `rows_per_output` rows are drawn with probabilities proportional to their variances, by
        systematic sampling: each drawn row represents the same fraction of the total variance, and if there are few
        rows, all of them are drawn.
        """
        blocks = cls.zeros(predictor)
        K, D = blocks.matrices.shape[:2]
        leaves = None if sample.x.is_floating_point() else LeafRows(sample.x.long(), D)
        f = sample.x @ w.view(K, D).to(sample.x).T if leaves is None else leaves.outputs(w.view(K, D))
        variance = predictor.family.curvature(sample.y.to(f), f).double()
        if sample.weight is not None:
            variance = variance * sample.weight.to(variance)[:, None]
        scale = count / max(1, len(sample))
        blocks.drawn, blocks.weight = (
            torch.full((K, rows_per_output), -1),
            torch.zeros(K, rows_per_output).to(blocks.matrices),
        )
        blocks.count = torch.tensor(float(count), dtype=torch.float64)
        first = torch.rand(K, generator=generator, dtype=torch.float64)
        for k in range(K):
            summed = variance[:, k].cumsum(0)
            total = float(summed[-1]) if len(summed) else 0.0
            if not 0 < total < math.inf:
                continue
            u = ((torch.arange(rows_per_output, dtype=torch.float64) + first[k]) / rows_per_output * total).to(summed)
            chosen = torch.searchsorted(summed, u).clamp(max=len(summed) - 1)
            index, times = chosen.unique(return_counts=True)
            blocks.weight[k] = scale * total / rows_per_output
            blocks.drawn[k] = sample.key[chosen.cpu()]
            if leaves is not None:
                some = LeafRows(leaves.slots[index], D)
                blocks.matrices[k] = leaf_hessian(some, times * (scale * total / rows_per_output)).float()
                continue
            rows = sample.x[index] * (times * (scale * total / rows_per_output)).sqrt().to(sample.x)[:, None]
            blocks.matrices[k] = rows.T @ rows
        return blocks

    def stands_for(self, count: int) -> bool:
        """Whether the estimate represents about `count` rows."""
        return bool(self.matrices.any()) and 0.5 * count <= float(self.count) <= 2 * count

    def forget(self, key: Tensor, phi: Tensor) -> None:
        """Remove the contributions of examples, given by keys and features, in place."""
        order = torch.argsort(key.cpu())
        known, rows = key.cpu()[order], phi[order.to(phi.device)].to(self.matrices)
        self.count -= len(key)
        for k in range(len(self.matrices)):
            known_rows = torch.nonzero(torch.isin(self.drawn[k], known))[:, 0]
            if len(known_rows):
                taken = rows[torch.searchsorted(known, self.drawn[k][known_rows]).to(rows.device)]
                self.matrices[k] -= (taken * self.weight[k][known_rows.to(self.weight.device)][:, None]).T @ taken
                self.drawn[k][known_rows] = -1
                self.weight[k][known_rows.to(self.weight.device)] = 0

    def learn(self, predictor: Predictor, w: Tensor, key: Tensor, phi: Tensor, weight: Tensor | None = None) -> None:
        """Add examples in place; of many, only those with the largest contributions."""
        K = len(self.matrices)
        self.count += len(key)
        variance = predictor.family.variance(phi @ w.view(K, -1).T).to(self.matrices)
        if weight is not None:
            variance = variance * weight.to(variance)[:, None]
        chosen = (variance.sum(1) * (phi**2).sum(1).to(variance)).topk(min(len(key), MAX_ADDED_ROWS)).indices
        rows, variance = phi[chosen].to(self.matrices), variance[chosen]
        for k in range(K):
            self.matrices[k] += (rows * variance[:, k, None]).T @ rows
        self.drawn = torch.cat([self.drawn, key[chosen.to(key.device)].cpu().expand(K, -1)], 1)
        self.weight = torch.cat([self.weight, variance.T], 1)

    def add(self, predictor: Predictor, w: Tensor, x: Tensor, weight: Tensor | None = None) -> None:
        phi = predictor.features(x)
        variance = predictor.family.variance(phi @ w.view(predictor.family.outputs, -1).T)
        if weight is not None:
            variance = variance * weight[:, None]
        for k in range(len(self.matrices)):
            self.matrices[k] += ((phi * variance[:, k, None]).T @ phi).float()

    def merge(self, other: Self) -> None:
        self.matrices += other.matrices
        self.count += other.count

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
        # the block of an unpenalised weight may be singular; any small penalty will do, as it affects only the speed
        ridge = float(delta[delta > 0].min()) if bool((delta > 0).any()) else 1e-3
        penalty = delta.view(K, D).clamp(min=ridge).to(self.matrices)
        factors = [factor_of(matrix, penalty[k]) for k, matrix in enumerate(self.matrices)]

        def solve(v: Tensor) -> Tensor:
            right = v.view(K, D).to(self.matrices)
            solved = [torch.cholesky_solve(right[k][:, None], factor)[:, 0] for k, factor in enumerate(factors)]
            return torch.stack(solved).reshape(-1).to(v)

        return solve

    def tensors(self) -> dict[str, Tensor]:
        return {"matrices": self.matrices, "drawn": self.drawn, "share": self.weight, "count": self.count}

    @classmethod
    def from_tensors(cls, tensors: dict[str, Tensor], predictor: Predictor) -> Self:
        return cls(tensors["matrices"], tensors["drawn"].cpu(), tensors["share"], tensors["count"].cpu())


def factor_of(matrix: Tensor, penalty: Tensor) -> Tensor:
    """A Cholesky factor of a block plus its penalty, or of its diagonal if rounding errors leave no other."""
    whole = matrix + torch.diag(penalty)
    diagonal = whole.diagonal().clamp(min=1e-30)
    for lift in (0.0, 1e-6, 1e-4):
        factor: Tensor
        factor, info = torch.linalg.cholesky_ex(whole + torch.diag(lift * diagonal))
        if int(info) == 0:
            return factor
    return torch.diag(diagonal.sqrt())
