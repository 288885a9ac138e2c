"""The objective of a certified model, with its derivatives, for dense and sparse features.

    F(w) = sum_i v_i l(y_i, W x_i) + 1/2 sum_j delta_j (w_j - m_j)^2 + b'w,   W = w as a (K, D) matrix

v are sample weights, delta the L2 coefficients (0: unpenalised), m the weights that `regularizer.toward` names (usually
zero), and b the perturbation of certified removal (usually zero).
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from amend.verification.families import Array, Categorical, Family

EPSILON = float(np.finfo(float).eps)
GRAM_ROWS = 4096
"""Rows per block while a Hessian is summed up, which bounds the memory for weighted copies."""


@dataclass
class Objective:
    family: Family
    features: Any
    """(n, D): an array, or a scipy CSR matrix."""
    targets: Array
    """(n, K)."""
    sample_weights: Array
    """(n,)."""
    delta: Array
    """(K, D), as the next two."""
    toward: Array
    perturbation: Array

    @property
    def shape(self) -> tuple[int, int]:
        rows, columns = self.delta.shape
        return rows, columns

    def outputs(self, w: Array) -> Array:
        return np.asarray(self.features @ w.reshape(self.shape).T)

    def evaluate(self, w: Array) -> tuple[float, Array]:
        """F(w) and its gradient (P,)."""
        f, matrix = self.outputs(w), w.reshape(self.shape)
        step = matrix - self.toward
        value = float(self.sample_weights @ self.family.loss(self.targets, f))
        value += float(0.5 * (self.delta * step * step).sum() + (self.perturbation * matrix).sum())
        residual = self.sample_weights[:, None] * self.family.residual(self.targets, f)
        gradient = np.asarray(self.features.T @ residual).T + self.delta * step + self.perturbation
        return value, self.without_shift(gradient).ravel()

    def gradient_error(self, w: Array) -> float:
        """Upper bound on the rounding error of the computed gradient's norm, in practice.

        A sum of n products has an error of about sqrt(n) eps times the sum of their sizes, and each residual inherits
        the error of its output, a sum of D products, times the curvature. The factor 4 leaves room for the functions.
        """
        f, lengths = self.outputs(w), abs(w).reshape(self.shape)
        size, (_, columns) = abs(self.features), self.shape
        output_error = np.sqrt(columns) * np.asarray(size @ lengths.T)
        family, y = self.family, self.targets
        terms = np.sqrt(len(f)) * abs(family.residual(y, f)) + family.curvature(y, f) * output_error + abs(y)
        summed = np.asarray(size.T @ (self.sample_weights[:, None] * terms)).T
        summed += self.delta * (lengths + abs(self.toward)) + abs(self.perturbation)
        return float(4 * EPSILON * np.linalg.norm(summed))

    def multiply_hessian(self, w: Array, margin: float = 0.0) -> Callable[[Array], Array]:
        """The Hessian at w as a function that multiplies it with a vector; see `hessian`."""
        curve = self.family.curve(self.targets, self.outputs(w), margin)

        def multiply(v: Array) -> Array:
            change = self.sample_weights[:, None] * curve(self.outputs(v))
            product = np.asarray(self.features.T @ change).T + self.delta * v.reshape(self.shape)
            return product.ravel()

        return multiply

    def hessian(self, w: Array, margin: float = 0.0) -> Array:
        """The Hessian at w (P, P). With a margin, a lower bound of it for all w whose outputs are that close."""
        classes, columns = self.shape
        total = np.zeros((classes, columns, classes, columns))
        f = self.outputs(w)
        for start in range(0, len(f), GRAM_ROWS):
            rows = slice(start, start + GRAM_ROWS)
            x = densify(self.features[rows])
            y, v = self.targets[rows], self.sample_weights[rows]
            c = v[:, None] * self.family.curvature(y, f[rows], margin)
            for k in range(classes):
                total[k, :, k] += (x * c[:, k, None]).T @ x
            if isinstance(self.family, Categorical):
                subtract_products(total, x, self.family.residual(np.zeros_like(y), f[rows]), v)
        matrix = total.reshape(classes * columns, -1)
        return matrix + np.diag(self.delta.ravel())

    def shifted(self) -> Any:
        """The features (D,) whose weights can all change by a constant without any effect, in a softmax."""
        free = (self.delta == 0).all(0)
        return free if isinstance(self.family, Categorical) else np.zeros_like(free)

    def without_shift(self, matrix: Array) -> Array:
        """Remove the part of weights or of a gradient (K, D) that has no effect on predictions or penalty."""
        free = self.shifted()
        if not free.any():
            return matrix
        centred = matrix.copy()
        centred[:, free] -= matrix[:, free].mean(0)
        return centred


def densify(rows: Any) -> Array:
    return np.asarray(rows.toarray() if hasattr(rows, "toarray") else rows)


def subtract_products(total: Array, x: Array, p: Array, v: Array) -> None:
    """Subtract the blocks p_k p_l off the diagonal of a softmax's Hessian: probabilities p (n, K), weights v (n,)."""
    for k in range(len(total)):
        for other in range(k):
            block = (x * (v * p[:, k] * p[:, other])[:, None]).T @ x
            total[k, :, other] -= block
            total[other, :, k] -= block
