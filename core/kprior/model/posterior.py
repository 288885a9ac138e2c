"""How sure a model is: a Gaussian posterior of its weights, and what that makes of a prediction.

Weights are N(w, Sigma), so an output is Gaussian, too, and an interval of it becomes one of what is predicted: of a
probability, of an expected count, or of a number, with the noise that numbers have. `core/kprior/posterior.py` finds
Sigma.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from .families import Family

LEVEL = 0.95
"""The share of the posterior that an interval holds."""
WIDTH = 1.959963984540054
"""Deviations to either side that hold it."""
SLAB = 128
"""Rows of the root that are multiplied at once: beside its diagonal, half of it is zero and is left out."""
ROW_NUMBERS = 2**22
"""Numbers at a time of what several outputs are made of on the way."""
NODES, SHARES = (torch.from_numpy(v) for v in np.polynomial.hermite_e.hermegauss(16))
"""Of the Gauss-Hermite rule: deviations, and what each counts."""


@dataclass(frozen=True)
class Uncertainty:
    """Of predicted means (n, K)."""

    std: Tensor
    """(n, K) standard deviations."""
    low: Tensor
    high: Tensor
    """(n, K) ends of the intervals that hold LEVEL."""


@dataclass(frozen=True)
class Posterior:
    """N(w, R'R) of the weights of K outputs on D features, and the variance of numbers beside their mean."""

    root: Tensor
    """(K D, K D) float32: R, lower triangular."""
    outputs: int
    noise: float = 0.0

    @classmethod
    def of(cls, factor: Tensor, outputs: int, noise: float | None = None) -> Posterior:
        """From a Cholesky factor of the precision; with noise, of that over the noise."""
        eye = torch.eye(len(factor), dtype=factor.dtype, device=factor.device)
        root = torch.linalg.solve_triangular(factor, eye, upper=False) * math.sqrt(1.0 if noise is None else noise)
        return cls(root.float().cpu().contiguous(), outputs, noise or 0.0)

    def covariance(self, phi: Tensor) -> Tensor:
        """Of the outputs of rows with features (n, D): (n, K, K)."""
        phi, K = phi.to(self.root), self.outputs
        if K == 1:
            total = torch.zeros(len(phi))
            for start in range(0, len(self.root), SLAB):
                end = min(start + SLAB, len(self.root))
                total += (phi[:, :end] @ self.root[start:end, :end].T).square_().sum(1)
            return total[:, None, None]
        blocks = self.root.view(len(self.root), K, -1)
        step = max(1, ROW_NUMBERS // (K * len(self.root)))
        made = []
        for start in range(0, len(phi), step):
            spread = torch.einsum("nd,pkd->nkp", phi[start : start + step], blocks)
            made.append(spread @ spread.transpose(1, 2))
        return torch.cat(made) if made else torch.zeros(0, K, K)

    def assess(self, family: Family, f: Tensor, phi: Tensor) -> Uncertainty:
        """How sure predictions are whose outputs are f (n, K) and whose features are phi (n, D)."""
        covariance, f = self.covariance(phi).double(), f.double()
        variance = covariance.diagonal(dim1=1, dim2=2)
        if family.name == "categorical":
            return assess_classes(covariance, variance, family.mean(f))
        if family.name == "gaussian":
            std = (variance + self.noise).sqrt()
            return Uncertainty(std, f - WIDTH * std, f + WIDTH * std)
        reach = WIDTH * variance.sqrt()
        low, high = family.mean(f - reach), family.mean(f + reach)
        if family.name == "poisson":  # of a log-normal
            return Uncertainty((f + variance / 2).exp() * variance.expm1().sqrt(), low, high)
        each = torch.sigmoid(f + variance.sqrt() * NODES)
        shares = SHARES / SHARES.sum()
        mean = each @ shares
        return Uncertainty(((each - mean[:, None]) ** 2 @ shares).sqrt()[:, None], low, high)


def assess_classes(covariance: Tensor, variance: Tensor, p: Tensor) -> Uncertainty:
    """Of classes with probabilities p (n, K): by the slope of log(p / (1 - p)), whose interval is that of p.

    The slope of log p_k is e_k - p, and that of log(p_k / (1 - p_k)) as much over 1 - p_k.
    """
    along = torch.einsum("nkl,nl->nk", covariance, p)
    spread = (variance - 2 * along + (along * p).sum(1, keepdim=True)).clamp(min=0).sqrt()  # of log p
    rest = (1 - p).clamp(min=1e-12)
    logit, reach = p.clamp(min=1e-300).log() - rest.log(), WIDTH * spread / rest
    std = torch.minimum(p * spread, (p * rest).sqrt())
    return Uncertainty(std, torch.sigmoid(logit - reach), torch.sigmoid(logit + reach))
