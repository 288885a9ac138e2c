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
Z_SCORE = 1.959963984540054
"""Standard deviations to either side of a Gaussian's mean that hold it."""
ROWS_PER_STEP = 256
"""Rows of the root that are multiplied at once: beside its diagonal, half of it is zero and is left out."""
MIN_FEATURES_FOR_SKETCH, SKETCH_SIZE = 640, 320
"""Features of one output above which lengths are taken of a projection to so many numbers: a deviation is then off by
a thirtieth, as a rule, and a prediction takes half the time."""
ROW_NUMBERS = 2**22
"""Numbers at a time of what several outputs are made of on the way."""
NODES = np.linspace(-8, 8, 97)
NODE_WEIGHTS = np.exp(-(NODES**2) / 2) / np.exp(-(NODES**2) / 2).sum()
"""Deviations, and what each counts in a mean over a Gaussian. At even distances: where log-odds deviate by 20 this is
off by a hundredth, and a Gauss-Hermite rule, for what is no polynomial at all, by a twentieth."""


class Uncertainty(NamedTuple):
    """Of predicted means (n, K): (n, K) each."""

    std: Array
    """Standard deviations; of Student's t, its scale."""
    low: Array
    high: Array
    """Ends of the intervals that hold LEVEL."""


@dataclass(frozen=True)
class Posterior:
    """N(w, R'R) of the weights of K outputs on D features, and the variance of numbers beside their mean."""

    root: Array
    """(K D, K D): R, lower triangular; of many features (SKETCH_SIZE, D), a random projection of it. It is float32, but
    where outputs are compared: what they have in common may be far more than their difference."""
    outputs: int
    noise: float = 0.0
    freedom: float = math.inf
    """Degrees of freedom that the noise was found from: numbers have Student's t."""
    width: float = Z_SCORE
    """Deviations to either side that hold LEVEL of it."""

    @classmethod
    def of(
        cls, root: Tensor, outputs: int, noise: float = 0.0, freedom: float = math.inf, width: float = Z_SCORE
    ) -> Posterior:
        """From R: the inverse of the precision's Cholesky factor."""
        root = root.cpu()
        if outputs == 1 and len(root) > MIN_FEATURES_FOR_SKETCH:
            root = projection(len(root)) @ root.double()
        root = root.float() if outputs == 1 else root.double()
        return cls(np.ascontiguousarray(root.numpy()), outputs, noise, freedom, width)

    def covariance(self, phi: Array) -> Array:
        """Of the outputs of rows with features (n, D): (n, K, K)."""
        phi, outputs = phi.astype(self.root.dtype), self.outputs
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
            slabs = [
                (slice(i, i + ROWS_PER_STEP), slice(i + ROWS_PER_STEP)) for i in range(0, len(self.root), ROWS_PER_STEP)
            ]
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
            return Uncertainty(std, f - self.width * std, f + self.width * std)
        with np.errstate(over="ignore"):
            if family == "poisson":  # of a log-normal
                low, high = np.exp(f - Z_SCORE * spread), np.exp(f + Z_SCORE * spread)
                return Uncertainty(np.exp(f + spread**2 / 2) * np.sqrt(np.expm1(spread**2)), low, high)
        return assess_logits(f, spread)


def projection(size: int) -> Tensor:
    """(SKETCH_SIZE, size) random directions, orthogonal, that keep lengths in the mean."""
    drawn = torch.from_numpy(np.random.RandomState(0).standard_normal((size, SKETCH_SIZE)))
    directions: Tensor = torch.linalg.qr(drawn)[0].T
    return directions * math.sqrt(size / SKETCH_SIZE)


def assess_classes(f: Array, covariance: Array) -> Uncertainty:
    """Of classes: each against the others, as yes or no.

    The slope of log(p_k / (1 - p_k)) is e_k - q_k, q_k being the other classes' p, made to sum to one. All is told by
    how outputs differ from the likeliest one's, t: of that one the slope is -q, and of the others 1 - p_k is half or
    more, so that nothing is lost where a model is sure.
    """
    rows, first = np.arange(len(f)), f.argmax(1)
    t = f - f[rows, first, None]
    odds, apart = np.exp(t), t.copy()
    odds[rows, first], apart[rows, first] = 0, -np.inf
    second = apart.max(1, keepdims=True)
    q = np.exp(apart - second)  # and not the odds, which may be less than the least number
    log_others = second + np.log(q.sum(1, keepdims=True))
    q, others = q / q.sum(1, keepdims=True), odds.sum(1, keepdims=True)
    p, rest = odds / (1 + others), others / (1 + others)  # of all but the likeliest, and their sum
    to_first = covariance[rows, first]
    of_t = covariance - to_first[:, None] - to_first[:, :, None] + to_first[rows, first][:, None, None]
    along = np.einsum("nkl,nl->nk", of_t, q)
    whole = (along * q).sum(1, keepdims=True)
    variance = (np.einsum("nkk->nk", of_t) - 2 * rest * along + rest**2 * whole) / (1 - p) ** 2
    logit = t - np.log1p(others - odds)
    variance[rows, first], logit[rows, first] = whole[:, 0], -log_others[:, 0]
    return assess_logits(logit, np.sqrt(variance.clip(0)))


def assess_logits(f: Array, spread: Array) -> Uncertainty:
    """Of probabilities whose log-odds are f with a deviation: (n, K) both."""
    with np.errstate(over="ignore"):
        low, high = sigmoid(f - Z_SCORE * spread), sigmoid(f + Z_SCORE * spread)
        std, step = np.empty(f.shape), max(1, ROW_NUMBERS // (f.shape[1] * len(NODES)))
        for start in range(0, len(f), step):
            some = slice(start, start + step)
            # the one of both answers that is less likely: it has more digits, and varies as much
            each = sigmoid(-np.abs(f[some, :, None]) + spread[some, :, None] * NODES)
            mean = each @ NODE_WEIGHTS
            std[some] = np.sqrt((each - mean[:, :, None]) ** 2 @ NODE_WEIGHTS)
    return Uncertainty(std, low, high)


def sigmoid(f: Array) -> Array:
    made: Array = 1 / (1 + np.exp(-f))
    return made
