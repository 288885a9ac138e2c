"""How sure a model is: a Gaussian posterior of its weights, and what that makes of a prediction.

Weights are N(w, Sigma), so an output is Gaussian, too, and an interval of it becomes one of what is predicted: of a
probability, of an expected count, or of a number, with the noise that numbers have. `core/kprior/posterior.py` finds
Sigma. It is all NumPy: for one row, asking torch takes longer than the answer.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

Array = NDArray[Any]

LEVEL = 0.95
"""The share of the posterior that an interval holds."""
WIDTH = 1.959963984540054
"""Deviations to either side that hold it."""
SLAB = 256
"""Rows of the root that are multiplied at once: beside its diagonal, half of it is zero and is left out."""
MANY, SKETCH = 640, 320
"""Features of one output above which lengths are taken of a projection to so many numbers: a deviation is then off by
a thirtieth, as a rule, and a prediction takes half the time."""
ROW_NUMBERS = 2**22
"""Numbers at a time of what several outputs are made of on the way."""
NODES, SHARES = np.polynomial.hermite_e.hermegauss(12)
SHARES = SHARES / SHARES.sum()
"""Of the Gauss-Hermite rule: deviations, and what each counts."""


class Uncertainty(NamedTuple):
    """Of predicted means (n, K): (n, K) each."""

    std: Array
    """Standard deviations."""
    low: Array
    high: Array
    """Ends of the intervals that hold LEVEL."""


@dataclass(frozen=True)
class Posterior:
    """N(w, R'R) of the weights of K outputs on D features, and the variance of numbers beside their mean."""

    root: Array
    """(K D, K D) float32: R, lower triangular; of many features (SKETCH, D), a random projection of it."""
    outputs: int
    noise: float = 0.0

    @classmethod
    def of(cls, root: Tensor, outputs: int, noise: float = 0.0) -> Posterior:
        """From R: the inverse of the precision's Cholesky factor."""
        root = root.cpu()
        if outputs == 1 and len(root) > MANY:
            root = projection(len(root)) @ root.double()
        return cls(np.ascontiguousarray(root.float().numpy()), outputs, noise)

    def covariance(self, phi: Array) -> Array:
        """Of the outputs of rows with features (n, D): (n, K, K)."""
        phi, outputs = phi.astype(np.float32), self.outputs
        if outputs == 1:
            return self.variance(phi)[:, None, None]
        blocks = self.root.reshape(-1, phi.shape[1]).T  # a column for each number of the root, and each output
        step = max(1, ROW_NUMBERS // blocks.shape[1])
        made = np.empty((len(phi), outputs, outputs))
        for start in range(0, len(phi), step):
            some = (phi[start : start + step] @ blocks).reshape(-1, len(self.root), outputs)
            made[start : start + step] = some.transpose(0, 2, 1) @ some
        return made

    def variance(self, phi: Array) -> Array:
        """The same for one output: (n,)."""
        if len(self.root) < phi.shape[1]:
            slabs = [(slice(None), slice(None))]
        else:
            slabs = [(slice(i, i + SLAB), slice(i + SLAB)) for i in range(0, len(self.root), SLAB)]
        total: Array = np.zeros(len(phi))
        for rows, columns in slabs:
            spread = phi[:, columns] @ self.root[rows, columns].T
            total += np.einsum("np,np->n", spread, spread)
        return total

    def assess(self, family: str, f: Array, phi: Array) -> Uncertainty:
        """How sure predictions of a family are whose outputs are f (n, K) and whose features are phi (n, D)."""
        if family == "categorical":
            return assess_classes(f, self.covariance(phi))
        spread = np.sqrt(self.variance(phi.astype(np.float32)))[:, None]
        if family == "gaussian":
            std = np.sqrt(spread**2 + self.noise)
            return Uncertainty(std, f - WIDTH * std, f + WIDTH * std)
        with np.errstate(over="ignore"):
            if family == "poisson":  # of a log-normal
                low, high = np.exp(f - WIDTH * spread), np.exp(f + WIDTH * spread)
                return Uncertainty(np.exp(f + spread**2 / 2) * np.sqrt(np.expm1(spread**2)), low, high)
            low, high = sigmoid(f - WIDTH * spread), sigmoid(f + WIDTH * spread)
            each = sigmoid(f + spread * NODES)
        mean = each @ SHARES
        return Uncertainty(np.sqrt((each - mean[:, None]) ** 2 @ SHARES)[:, None], low, high)


def projection(size: int) -> Tensor:
    """(SKETCH, size) random directions, orthogonal, that keep lengths in the mean."""
    drawn = torch.from_numpy(np.random.RandomState(0).standard_normal((size, SKETCH)))
    directions: Tensor = torch.linalg.qr(drawn)[0].T
    return directions * math.sqrt(size / SKETCH)


def assess_classes(f: Array, covariance: Array) -> Uncertainty:
    """Of classes: by the slope of log(p / (1 - p)), whose interval is that of p.

    The slope of log p_k is e_k - p, and that of log(p_k / (1 - p_k)) as much over 1 - p_k.
    """
    odds = np.exp(f - f.max(1, keepdims=True))
    p = odds / odds.sum(1, keepdims=True)
    along = np.einsum("nkl,nl->nk", covariance, p)
    variance = np.einsum("nkk->nk", covariance) - 2 * along + (along * p).sum(1, keepdims=True)
    spread, rest = np.sqrt(variance.clip(0)), (1 - p).clip(1e-12)  # of log p
    logit, reach = np.log(p.clip(1e-300)) - np.log(rest), WIDTH * spread / rest
    std = np.minimum(p * spread, np.sqrt(p * rest))
    with np.errstate(over="ignore"):
        return Uncertainty(std, sigmoid(logit - reach), sigmoid(logit + reach))


def sigmoid(f: Array) -> Array:
    made: Array = 1 / (1 + np.exp(-f))
    return made
