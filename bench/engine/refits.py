"""The alternatives to adapting a GLM: scikit-learn's refit, from the old weights and from scratch.

At matched precision: its tolerance is tightened until the result is as good as Amend's is certified to be, and only the
fit that just does it is counted, as if somebody had known the tolerance beforehand.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from sklearn.linear_model import LogisticRegression

from bench.engine.clock import timed
from bench.engine.data import PIECE, Array, Rows

TRIES = 7


@dataclass(frozen=True)
class Refit:
    """The cheapest fit that was precise enough, or the most precise one."""

    cpu: float
    iterations: int
    precision: float
    """The distance or bound that was reached, relative to the weights."""
    tolerance: float
    matched: bool
    w: Array
    """(K, D + 1), the bias last."""
    wall: float
    """Wall-clock seconds."""


@dataclass(frozen=True)
class Refitter:
    """Fits of one set of rows with one penalty. A penalised bias is one more feature."""

    rows: Rows
    delta: float
    penalize_bias: bool
    dtype: type = np.float64

    def design(self) -> Array:
        """The inputs for scikit-learn; the time to create them is not counted."""
        if not self.penalize_bias:
            return np.ascontiguousarray(self.rows.x, self.dtype)
        x = np.empty((len(self.rows), self.rows.x.shape[1] + 1), self.dtype)
        x[:, :-1], x[:, -1] = self.rows.x, 1
        return x

    def matched(
        self, start: Array | None, wanted: float, precision: Callable[[Array], float], tolerance: float
    ) -> Refit:
        """Fit until `precision` of the weights is `wanted`; the search starts at `tolerance`."""
        x, best, loosest = self.design(), None, np.inf
        for _ in range(TRIES):
            found = self.fit(x, start, tolerance, precision, wanted)
            better = best is None or (found.matched, -found.cpu if found.matched else -found.precision) > (
                best.matched,
                -best.cpu if best.matched else -best.precision,
            )
            best = found if better else best
            if found.matched:
                if found.precision >= 0.5 * wanted or tolerance >= 0.5 * loosest:
                    break
            else:
                loosest = min(loosest, tolerance)
            factor = np.clip(0.8 * wanted / max(found.precision, 1e-300), 0.1, 20.0)
            tolerance = min(tolerance * float(factor), 0.7 * loosest)
        assert best is not None
        return best

    def fit(
        self, x: Array, start: Array | None, tolerance: float, precision: Callable[[Array], float], wanted: float
    ) -> Refit:
        """One fit."""
        free = not self.penalize_bias
        model = LogisticRegression(C=1 / self.delta, fit_intercept=free, tol=tolerance, max_iter=10_000)
        if start is not None:
            model.warm_start = True
            model.classes_ = np.arange(self.rows.classes)
            model.coef_ = (start[:, :-1] if free else start).astype(self.dtype)
            model.intercept_ = start[:, -1].astype(self.dtype) if free else np.zeros(len(start), self.dtype)
        with warnings.catch_warnings(), timed() as spent:
            warnings.simplefilter("ignore")
            model.fit(x, self.rows.y)
        w = model.coef_.astype(np.float64)
        if free:
            w = np.hstack([w, model.intercept_.astype(np.float64)[:, None]])
        reached = precision(w)
        return Refit(spent.cpu, int(np.max(model.n_iter_)), reached, tolerance, reached <= wanted, w, spent.wall)


def first_tolerance(rows: Rows, delta: float, size: float, wanted: float) -> float:
    """The first tolerance: scikit-learn stops when no entry of the gradient, divided by N, exceeds its tolerance."""
    return wanted * delta * size / len(rows) / 5


def gradient(rows: Rows, delta: float, penalize_bias: bool, w: Array) -> Array:
    """The gradient of the objective (K, D + 1), in double precision and independent of the engine's code."""
    total = np.zeros_like(w)
    for start in range(0, len(rows), PIECE):
        part = rows[start : start + PIECE]
        phi = np.hstack([part.x.astype(np.float64), np.ones((len(part), 1))])
        residual = means(phi @ w.T)
        if len(w) == 1:
            residual -= part.y[:, None]
        else:
            residual[np.arange(len(part)), part.y] -= 1
        total += residual.T @ phi
    return total + penalty_of(w.shape[1], delta, penalize_bias) * w


def penalty_of(dim: int, delta: float, penalize_bias: bool) -> Array:
    """The penalty of each weight of one output."""
    out = np.full(dim, delta)
    if not penalize_bias:
        out[-1] = 0
    return out


def relative_bound(rows: Rows, delta: float, w: Array) -> float:
    """|gradient| / delta / |w|, which bounds the relative distance to the optimum if every weight is penalised."""
    return float(np.linalg.norm(gradient(rows, delta, True, w)) / delta / np.linalg.norm(w))


def exact_optimum(rows: Rows, delta: float, penalize_bias: bool, start: Array) -> Array:
    """The optimum by Newton's method in double precision: (K, D + 1), one row if binary. Distances refer to it."""
    w = start.astype(np.float64).copy()
    K, D = w.shape
    penalty = np.tile(penalty_of(D, delta, penalize_bias), K)
    for _ in range(30):
        H = np.zeros((K, D, K, D))
        for begin in range(0, len(rows), PIECE // 4):
            part = rows[begin : begin + PIECE // 4]
            phi = np.hstack([part.x.astype(np.float64), np.ones((len(part), 1))])
            p = means(phi @ w.T)
            for k in range(K):
                for j in range(K):
                    H[k, :, j] += phi.T @ (phi * (p[:, k] * ((k == j) - p[:, j]))[:, None])
        whole = H.reshape(K * D, K * D) + np.diag(penalty)
        # a constant that is added to all biases changes nothing: the shortest step leaves it alone
        step = np.linalg.lstsq(whole, gradient(rows, delta, penalize_bias, w).reshape(-1), rcond=None)[0]
        w -= step.reshape(K, D)
        if np.linalg.norm(step) <= 1e-6 * np.linalg.norm(w):  # its square is left
            break
    return w


def means(f: Array) -> Array:
    """Probabilities from outputs (n, K): of the second class if there is one output, otherwise of each class."""
    if f.shape[1] == 1:
        return 1 / (1 + np.exp(-f))
    odds = np.exp(f - f.max(1, keepdims=True))
    return odds / odds.sum(1, keepdims=True)


def distance(w: Array, truth: Array) -> float:
    """|w - truth| / |truth|."""
    return float(np.linalg.norm(w - truth) / np.linalg.norm(truth))
