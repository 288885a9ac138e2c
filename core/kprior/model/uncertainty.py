"""Uncertainty: a Gaussian posterior of the weights, and the uncertainty of a prediction that follows from it.

The weights are N(w, Sigma), so an output is also Gaussian. An interval of the output gives one of the prediction: of a
probability, of an expected count, or of a number including its noise. `core/kprior/state/posterior.py` computes
Sigma. This module uses NumPy only: for a single row, calls to torch take longer than the computation.
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
"""Posterior probability of an interval."""
Z_SCORE = 1.959963984540054
"""Half the width of that interval, in standard deviations of a Gaussian."""
ROWS_PER_STEP = 256
"""Rows of the root that are multiplied at once. The zeros above the diagonal blocks are skipped."""
MIN_FEATURES_FOR_SKETCH, SKETCH_SIZE = 640, 320
"""Above this number of features per output, lengths are computed from a random projection to SKETCH_SIZE dimensions: a
standard deviation is then typically off by 3 %, and a prediction takes half the time."""
ROW_NUMBERS = 2**22
"""Size of the temporary array for several outputs."""
NODES = np.linspace(-8, 8, 97)
NODE_WEIGHTS = np.exp(-(NODES**2) / 2) / np.exp(-(NODES**2) / 2).sum()
"""Nodes (in standard deviations) and weights for means over a Gaussian. The nodes are equidistant: for log-odds with a
standard deviation of 20 the error is 0.01, and that of a Gauss-Hermite rule 0.05, as a sigmoid is no polynomial."""


class Uncertainty(NamedTuple):
    """Uncertainty of predicted means (n, K): (n, K) each."""

    std: Array
    """Standard deviations; for Student's t, its scale."""
    low: Array
    high: Array
    """Bounds of the intervals with probability LEVEL."""


@dataclass(frozen=True)
class Posterior:
    """N(w, R'R), the posterior of the weights of K outputs on D features, and the noise variance of a number."""

    root: Array
    """(K D, K D): R, lower triangular; with many features a random projection of it, (SKETCH_SIZE, D). It is float32,
    except where outputs are compared: what they share may be far larger than their difference."""
    outputs: int
    noise: float = 0.0
    freedom: float = math.inf
    """Degrees of freedom of the noise estimate: numbers have Student's t distribution."""
    width: float = Z_SCORE
    """Half the width of an interval with probability LEVEL, in standard deviations."""

    @classmethod
    def of(
        cls, root: Tensor, outputs: int, noise: float = 0.0, freedom: float = math.inf, width: float = Z_SCORE
    ) -> Posterior:
        """Build a posterior from R, the inverse of the precision's Cholesky factor."""
        root = root.cpu()
        if outputs == 1 and len(root) > MIN_FEATURES_FOR_SKETCH:
            root = projection(len(root)) @ root.double()
        root = root.float() if outputs == 1 else root.double()
        return cls(np.ascontiguousarray(root.numpy()), outputs, noise, freedom, width)

    def covariance(self, phi: Array) -> Array:
        """Covariance of the outputs of rows with features (n, D): (n, K, K)."""
        phi, outputs = phi.astype(self.root.dtype), self.outputs
        if outputs == 1:
            return self.variance(phi)[:, None, None]
        blocks = self.root.reshape(-1, phi.shape[1]).T  # one column per row of the root and output
        step = max(1, ROW_NUMBERS // blocks.shape[1])
        made = np.empty((len(phi), outputs, outputs))
        for start in range(0, len(phi), step):
            some = (phi[start : start + step] @ blocks).reshape(-1, len(self.root), outputs)
            made[start : start + step] = some.transpose(0, 2, 1) @ some
        return made

    def variance(self, phi: Array) -> Array:
        """Variance of the output of rows with features (n, D), for models with one output: (n,)."""
        if len(self.root) < phi.shape[1]:
            slabs = [(slice(None), slice(None))]
        else:
            slabs = [
                (slice(i, i + ROWS_PER_STEP), slice(i + ROWS_PER_STEP)) for i in range(0, len(self.root), ROWS_PER_STEP)
            ]
        total: Array = np.zeros(len(phi))
        for rows, columns in slabs:
            spread = phi[:, columns] @ self.root[rows, columns].T
            total += np.einsum("np,np->n", spread, spread)
        return total

    def assess(self, family: str, f: Array, phi: Array) -> Uncertainty:
        """Uncertainty of the predictions with outputs f (n, K) and features phi (n, D)."""
        if family == "categorical":
            return assess_classes(f, self.covariance(phi))
        if self.outputs > 1:
            spread = np.sqrt(np.einsum("nkk->nk", self.covariance(phi)))
        else:
            spread = np.sqrt(self.variance(phi.astype(np.float32)))[:, None]
        if family == "gaussian":
            std = np.sqrt(spread**2 + self.noise)
            return Uncertainty(std, f - self.width * std, f + self.width * std)
        with np.errstate(over="ignore"):
            if family == "poisson":  # the mean of a log-normal distribution
                low, high = np.exp(f - Z_SCORE * spread), np.exp(f + Z_SCORE * spread)
                return Uncertainty(np.exp(f + spread**2 / 2) * np.sqrt(np.expm1(spread**2)), low, high)
        return assess_logits(f, spread)


def projection(size: int) -> Tensor:
    """(SKETCH_SIZE, size) orthogonal random directions that preserve lengths on average."""
    drawn = torch.from_numpy(np.random.RandomState(0).standard_normal((size, SKETCH_SIZE)))
    directions: Tensor = torch.linalg.qr(drawn)[0].T
    return directions * math.sqrt(size / SKETCH_SIZE)


def assess_classes(f: Array, covariance: Array) -> Uncertainty:
    """Uncertainty of class probabilities, each class against all others.

    The slope of log(p_k / (1 - p_k)) is e_k - q_k, where q_k are the probabilities of the other classes, normalised to
    sum to one. Everything is computed from the differences t between the outputs and that of the likeliest class. The
    slope of the likeliest class is -q, and 1 - p_k is at least one half for the others, so that no digits are lost
    where a model is nearly certain.
    """
    rows, first = np.arange(len(f)), f.argmax(1)
    t = f - f[rows, first, None]
    odds, apart = np.exp(t), t.copy()
    odds[rows, first], apart[rows, first] = 0, -np.inf
    second = apart.max(1, keepdims=True)
    q = np.exp(apart - second)  # not from the odds, which may underflow
    log_others = second + np.log(q.sum(1, keepdims=True))
    q, others = q / q.sum(1, keepdims=True), odds.sum(1, keepdims=True)
    p, rest = odds / (1 + others), others / (1 + others)  # probabilities of all but the likeliest class, and their sum
    to_first = covariance[rows, first]
    of_t = covariance - to_first[:, None] - to_first[:, :, None] + to_first[rows, first][:, None, None]
    along = np.einsum("nkl,nl->nk", of_t, q)
    whole = (along * q).sum(1, keepdims=True)
    variance = (np.einsum("nkk->nk", of_t) - 2 * rest * along + rest**2 * whole) / (1 - p) ** 2
    logit = t - np.log1p(others - odds)
    variance[rows, first], logit[rows, first] = whole[:, 0], -log_others[:, 0]
    return assess_logits(logit, np.sqrt(variance.clip(0)))


def assess_logits(f: Array, spread: Array) -> Uncertainty:
    """Uncertainty of probabilities whose log-odds have mean f and standard deviation `spread`: (n, K) both."""
    with np.errstate(over="ignore"):
        low, high = sigmoid(f - Z_SCORE * spread), sigmoid(f + Z_SCORE * spread)
        std, step = np.empty(f.shape), max(1, ROW_NUMBERS // (f.shape[1] * len(NODES)))
        for start in range(0, len(f), step):
            some = slice(start, start + step)
            # the less likely of the two classes: it has more digits, and the same standard deviation
            each = sigmoid(-np.abs(f[some, :, None]) + spread[some, :, None] * NODES)
            mean = each @ NODE_WEIGHTS
            std[some] = np.sqrt((each - mean[:, :, None]) ** 2 @ NODE_WEIGHTS)
    return Uncertainty(std, low, high)


def sigmoid(f: Array) -> Array:
    made: Array = 1 / (1 + np.exp(-f))
    return made
