"""Models fitted by other libraries than ours, one for each family: the truth that refits are compared with."""

from __future__ import annotations

import numpy as np
from scipy.linalg import sqrtm
from scipy.sparse import csr_matrix
from sklearn.linear_model import Lasso, LogisticRegression, PoissonRegressor, Ridge
from sklearn.svm import LinearSVC

from tests.amend.verification.builder import Model

ROWS, COLUMNS = 120, 4


def make_rows(seed: int = 0) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Features without the constant, a score, and sample weights."""
    stream = np.random.default_rng(seed)
    x = stream.normal(size=(ROWS, COLUMNS))
    score = x @ np.array([1.0, -0.5, 0.3, 0.0]) + 0.4 + 0.5 * stream.normal(size=ROWS)
    return x, score, stream.uniform(0.5, 2.0, ROWS)


def with_constant(x: np.ndarray) -> np.ndarray:
    return np.hstack([x, np.ones((len(x), 1))])


def free_bias(delta: np.ndarray | float, outputs: int = 1) -> np.ndarray:
    return np.tile(np.append(np.broadcast_to(delta, COLUMNS), 0.0), (outputs, 1))


def stack(coefficients: np.ndarray, intercepts: np.ndarray) -> np.ndarray:
    return np.hstack([np.atleast_2d(coefficients), np.reshape(intercepts, (-1, 1))])


def bernoulli() -> Model:
    """A penalty per column, as columns of another scale."""
    x, score, v = make_rows()
    y, delta = (score > 0).astype(float), np.array([0.5, 1.0, 2.0, 4.0])
    fit = LogisticRegression(C=1.0, tol=1e-12, solver="newton-cholesky").fit(x / np.sqrt(delta), y, v)
    weights = stack(fit.coef_ / np.sqrt(delta), fit.intercept_)
    return Model(weights, free_bias(delta), with_constant(x), y, v, "bernoulli")


def categorical() -> Model:
    x, score, v = make_rows(1)
    y = np.digitize(score, [-0.5, 0.5]).astype(float)
    fit = LogisticRegression(C=1.0, tol=1e-12, solver="newton-cg", max_iter=1000).fit(x, y, v)
    weights = stack(fit.coef_, fit.intercept_ - fit.intercept_.mean())
    return Model(weights, free_bias(1.0, 3), with_constant(x), y, v, "categorical")


def gaussian() -> Model:
    x, score, v = make_rows(2)
    fit = Ridge(alpha=2.0, solver="cholesky").fit(x, score, v)
    return Model(stack(fit.coef_, fit.intercept_), free_bias(2.0), with_constant(x), score, v, "gaussian")


def perturbed() -> Model:
    """Certified removal, drawn toward other weights: (X'VX + D) w = X'Vy + D m - b."""
    x, score, v = make_rows(3)
    phi, delta = with_constant(x), np.full(COLUMNS + 1, 1.5)
    m, b = np.linspace(-1, 1, COLUMNS + 1), np.linspace(2, -2, COLUMNS + 1)
    w = np.linalg.solve((phi.T * v) @ phi + np.diag(delta), (phi.T * v) @ score + delta * m - b)
    extra = {"toward": m[None], "perturbation": b[None]}
    return Model(w[None], delta[None], phi, score, v, "gaussian", extra=extra)


def poisson() -> Model:
    x, score, v = make_rows(4)
    y = np.random.default_rng(4).poisson(np.exp(score)).astype(float)
    fit = PoissonRegressor(alpha=1.0 / v.sum(), tol=1e-12, solver="newton-cholesky", max_iter=1000).fit(x, y, v)
    return Model(stack(fit.coef_, fit.intercept_), free_bias(1.0), with_constant(x), y, v, "poisson")


def squared_hinge() -> Model:
    x, score, v = make_rows(5)
    y, phi = (score > 0).astype(float), with_constant(x)
    fit = LinearSVC(C=1.0, dual=False, tol=1e-12, fit_intercept=False, max_iter=10_000).fit(phi, y, v)
    return Model(fit.coef_, np.ones((1, COLUMNS + 1)), phi, y, v, "squared_hinge")


def huber() -> Model:
    """Huber's loss is min_z (r - z)^2 / 2 + t |z|: outliers z by the lasso, the rest by ridge regression."""
    x, score, _ = make_rows(6)
    score[::10] += 8.0
    phi, threshold = with_constant(x), 0.7
    solve = np.linalg.inv(phi.T @ phi + np.eye(COLUMNS + 1)) @ phi.T
    root = np.real(sqrtm(np.eye(ROWS) - phi @ solve))
    lasso = Lasso(alpha=threshold / ROWS, fit_intercept=False, tol=1e-14, max_iter=1_000_000).fit(root, root @ score)
    weights, ones = (solve @ (score - lasso.coef_))[None], np.ones((1, COLUMNS + 1))
    return Model(weights, ones, phi, score, np.ones(ROWS), "huber", options={"threshold": threshold})


def sparse() -> Model:
    model = bernoulli()
    model.features = csr_matrix(model.features * (abs(model.features) > 0.5))
    y, x, v = model.targets, model.features[:, :COLUMNS], model.sample_weights
    fit = LogisticRegression(C=1.0, tol=1e-12, solver="newton-cholesky").fit(x.toarray(), y, v)
    model.weights, model.delta = stack(fit.coef_, fit.intercept_), free_bias(1.0)
    return model


FITTED = [bernoulli, categorical, gaussian, perturbed, poisson, squared_hinge, huber, sparse]
