"""Problems of every kind of target, and what scikit-learn says their weights are."""

from __future__ import annotations

from itertools import combinations_with_replacement

import numpy as np
from sklearn.linear_model import LogisticRegression, PoissonRegressor, Ridge

from tests.worker.deployment import DIM, Numbers

TARGETS = {
    "binary": {"kind": "binary"},
    "classes": {"kind": "classes", "values": [0, 1, 2]},
    "number": {"kind": "number"},
    "count": {"kind": "count"},
}


def examples_of(kind: str, n: int, seed: int = 0) -> tuple[Numbers, Numbers]:
    """Inputs and noisy targets of a rule that bends a little, so that a degree of 2 differs from 1."""
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(n, DIM)).astype(np.float32)
    f = x[:, 0] - 0.5 * x[:, -1] + 0.3 * x[:, 1] ** 2
    if kind == "binary":
        return x, (rng.random(n) < 1 / (1 + np.exp(-2 * f))).astype(int)
    if kind == "classes":
        noisy = np.stack([f, x[:, 1], -f], 1) + rng.gumbel(size=(n, 3))
        return x, noisy.argmax(1)
    if kind == "number":
        return x, f + 0.5 * rng.normal(size=n)
    return x, rng.poisson(np.exp(0.5 * f))


def fit(kind: str, x: Numbers, y: Numbers, delta: float, degree: int = 1) -> Numbers:
    """The weights that minimise sum loss + delta/2 |w|^2 without a penalty on the bias; the bias is the last column."""
    phi = monomials(x, degree)
    model = {
        "binary": LogisticRegression(C=1 / delta, solver="newton-cholesky", tol=1e-10),
        "classes": LogisticRegression(C=1 / delta, solver="newton-cholesky", tol=1e-10),
        "number": Ridge(alpha=delta, solver="cholesky"),
        "count": PoissonRegressor(alpha=delta / len(y), solver="newton-cholesky", tol=1e-10),
    }[kind].fit(phi, y)
    coefficients = np.atleast_2d(model.coef_)
    biases = np.broadcast_to(model.intercept_, len(coefficients))
    if kind == "classes":  # a constant added to all biases says the same: let them sum to zero
        biases = biases - biases.mean()
    return np.column_stack([coefficients, biases]).reshape(-1)


def monomials(x: Numbers, degree: int) -> Numbers:
    """All products of up to `degree` inputs, by degree, without the constant."""
    columns = [
        x[:, list(chosen)].astype(np.float64).prod(1)
        for d in range(1, degree + 1)
        for chosen in combinations_with_replacement(range(x.shape[1]), d)
    ]
    return np.stack(columns, 1)
