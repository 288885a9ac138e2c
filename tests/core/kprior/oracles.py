"""Retrains that owe nothing to the engine: scikit-learn where it has the model, a long-double Newton elsewhere.

Weights come flat and in the engine's order: for each output the monomials by degree, the constant last.
"""

from __future__ import annotations

from itertools import combinations_with_replacement
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.linear_model import LogisticRegression, PoissonRegressor, Ridge
from torch import Tensor

from core.kprior import Examples

Array = NDArray[Any]
LONG = np.longdouble


def monomials_of(dim: int, architecture: dict[str, Any]) -> list[tuple[int, ...]]:
    """The features of a linear architecture but the constant, as tuples of inputs, by degree."""
    chosen = architecture.get("features") or range(dim)
    degrees = range(1, architecture.get("degree", 1) + 1)
    return [m for d in degrees for m in combinations_with_replacement(chosen, d)]


def count_features(dim: int, architecture: dict[str, Any]) -> int:
    """How many numbers phi(x) has, the constant included."""
    if architecture["kind"] == "kernel":
        return int(architecture["features"]) + 1
    return len(monomials_of(dim, architecture)) + 1


def random_features(x: Array, architecture: dict[str, Any]) -> Array:
    """Random Fourier features of a kernel (Rahimi & Recht 2007) without the constant, in double precision."""
    stream, count = np.random.RandomState(architecture.get("seed", 0)), architecture["features"] // 2
    frequencies = stream.standard_normal((x.shape[1], count)) / architecture.get("lengthscale", 1.0)
    if architecture["kernel"] == "matern":  # Student's t: a Gaussian over the root of a mean of squares
        squares = stream.standard_normal((int(2 * architecture.get("nu", 1.5)), count)) ** 2
        frequencies /= np.sqrt(squares.mean(0))
    return np.hstack([np.cos(x @ frequencies), np.sin(x @ frequencies)]) / np.sqrt(count)


def design_matrix(x: Tensor, architecture: dict[str, Any]) -> Array:
    """phi(x), the constant 1 last."""
    values = x.double().numpy()
    if architecture["kind"] == "kernel":
        return np.hstack([random_features(values, architecture), np.ones((len(values), 1))])
    columns = [values[:, list(m)].prod(1) for m in monomials_of(x.shape[1], architecture)]
    return np.stack([*columns, np.ones(len(values))], 1)


def deltas_of(spec: dict[str, Any], outputs: int, features: int) -> Array:
    """The (P,) deltas of a spec's regularizer; columns' own for degree 1."""
    regularizer = spec["regularizer"]
    delta = np.broadcast_to(np.asarray(regularizer["delta"], dtype=float), (outputs * features,)).copy()
    for name, own in regularizer.get("columns", {}).items():
        delta.reshape(outputs, features)[:, int(name)] = own
    if not regularizer.get("penalize_bias", False):
        delta.reshape(outputs, features)[:, -1] = 0
    return delta


def mean_of(spec: dict[str, Any], size: int) -> Array:
    """The (P,) weights toward which a spec's regularizer draws."""
    return np.asarray(spec["regularizer"].get("toward", np.zeros(size)))


def row_weights(spec: dict[str, Any], data: Examples) -> Array | None:
    """What each row counts: its weight times its class's; None: one, all of them."""
    weight = None if data.weight is None else data.weight.double().numpy()
    if "class_weight" not in spec:
        return weight
    y = data.y.numpy()
    code = y.argmax(1) if y.shape[1] > 1 else np.round(y[:, 0])
    ours = np.array([spec["class_weight"].get(str(int(c)), 1.0) for c in code])
    return ours if weight is None else ours * weight


def kind_of(spec: dict[str, Any]) -> str:
    """What is fitted: the loss, where it is not the target's own."""
    return str(spec["loss"]["kind"] if "loss" in spec else spec["target"]["kind"])


def retrain(spec: dict[str, Any], data: Examples) -> Tensor:
    """The weights of a fit to all of `data`: scikit-learn's if one delta holds for all, toward 0; else the Newton's."""
    phi = design_matrix(data.x, spec["architecture"])
    y = data.y.double().numpy()
    K, D = y.shape[1], phi.shape[1]
    delta = deltas_of(spec, K, D)
    own = delta.reshape(K, D)[:, :-1]
    kind = kind_of(spec)
    fits = kind in ("number", "count") or (kind in ("binary", "classes") and bool(np.isin(y, (0, 1)).all()))
    mean = mean_of(spec, K * D)
    if own.min() != own.max() or own.min() <= 0 or not fits or mean.any():
        found = newton(kind, phi, y, delta, mean, weight=row_weights(spec, data))
        return torch.from_numpy(found.astype(np.float64))
    # weights of classes are scikit-learn's own to multiply
    weight = None if data.weight is None else data.weight.double().numpy()
    classes = {int(label): value for label, value in spec.get("class_weight", {}).items()} or None
    options = (float(own.min()), bool(delta[D - 1] > 0), weight, classes)
    return torch.from_numpy(sklearn_fit(kind, phi, y, *options))


def sklearn_fit(
    kind: str,
    phi: Array,
    y: Array,
    delta: float,
    penalize_bias: bool,
    weight: Array | None = None,
    classes: dict[int, float] | None = None,
) -> Array:
    """The fit of the estimator that minimises the same sum."""
    options: dict[str, Any] = {"fit_intercept": not penalize_bias}
    x = phi if penalize_bias else phi[:, :-1]
    if kind == "number":
        # a singular value decomposition, as the default's normal equations keep half the digits
        model = Ridge(alpha=delta, solver="svd", **options).fit(x, y[:, 0], sample_weight=weight)
    elif kind == "count":
        # its loss is a mean, ours a sum
        total = len(y) if weight is None else weight.sum()
        model = PoissonRegressor(alpha=delta / total, solver="newton-cholesky", tol=1e-14, max_iter=1000, **options)
        model.fit(x, y[:, 0], sample_weight=weight)
    else:
        label = y[:, 0] if kind == "binary" else y.argmax(1)
        options |= {"class_weight": classes}
        model = LogisticRegression(C=1 / delta, solver="newton-cholesky", tol=1e-13, max_iter=1000, **options)
        model.fit(x, label, sample_weight=weight)
    coefficients = np.atleast_2d(model.coef_)
    if penalize_bias:
        return coefficients.reshape(-1)
    return np.hstack([coefficients, np.reshape(model.intercept_, (-1, 1))]).reshape(-1)


def newton(
    kind: str,
    phi: Array,
    y: Array,
    delta: Array,
    mean: Array | None = None,
    start: Array | None = None,
    weight: Array | None = None,
) -> Array:
    """The minimiser of sum_i v_i l(y_i, phi_i' w) + 1/2 sum_j delta_j (w_j - m_j)^2 in 64-bit mantissas; small ones."""
    phi, y, delta = phi.astype(LONG), y.astype(LONG), delta.astype(LONG)
    v = np.ones(len(y), LONG) if weight is None else weight.astype(LONG)
    K, D = y.shape[1], phi.shape[1]
    mean = np.zeros(K * D, LONG) if mean is None else mean.astype(LONG)
    shifts = flat_directions(kind, delta.reshape(K, D))
    w = np.zeros(K * D, LONG) if start is None else start.astype(LONG)
    value = objective(kind, phi, y, delta, w, mean, v)
    left = 4
    for _ in range(200):
        gradient, H = derivatives(kind, phi, y, delta, w, mean, v)
        step = -solve(H + shifts.T @ shifts * np.diag(H).mean(), gradient)
        decrement = -gradient @ step
        if decrement < 1e-14 * (1 + abs(value)):
            # so near, differences of values are rounding alone; full steps double the digits until none are left
            w, left = w + step, left - 1
            if left == 0:
                return w
            continue
        t, reweighted = LONG(1), False
        while True:
            there = objective(kind, phi, y, delta, w + t * step, mean, v)
            if there <= value - LONG(1e-4) * t * decrement:
                break
            t /= 2
            if (t < 1e-3 or np.isnan(decrement)) and kind == "huber" and not reweighted:
                # too few rows have curvature here: a step of iteratively reweighted least squares leads on
                off = np.maximum(np.abs(phi @ w[:, None] - y)[:, 0], LONG(1.35))
                H = (phi * (v * LONG(1.35) / off)[:, None]).T @ phi + np.diag(delta)
                step, t, reweighted = -solve(H, gradient), LONG(1), True
                decrement = -gradient @ step
            if t < 1e-18:
                raise ArithmeticError("the oracle found no descent")
        w, value = w + t * step, there
    raise ArithmeticError("the oracle did not converge")


def flat_directions(kind: str, delta: Array) -> Array:
    """(s, P) orthonormal shifts of all logits by one unpenalised feature."""
    K, D = delta.shape
    out = []
    for j in range(D):
        if kind == "classes" and not delta[:, j].any():
            direction = np.zeros((K, D), LONG)
            direction[:, j] = 1 / np.sqrt(LONG(K))
            out.append(direction.reshape(-1))
    return np.stack(out) if out else np.zeros((0, K * D), LONG)


def means(kind: str, f: Array) -> Array:
    """h(f) of a target kind."""
    with np.errstate(over="ignore"):
        if kind == "binary":
            return 1 / (1 + np.exp(-f))
        if kind == "classes":
            e = np.exp(f - f.max(1, keepdims=True))
            return e / e.sum(1, keepdims=True)
        return f if kind in ("number", "squared_hinge", "huber") else np.exp(f)


def kinked(kind: str, y: Array, f: Array) -> tuple[Array, Array, Array]:
    """Loss, slope and curvature of squared hinge, and of Huber's with its default threshold."""
    if kind == "squared_hinge":
        s = 2 * y - 1
        short = np.maximum(0, 1 - s * f)
        return short**2, -2 * s * short, 2.0 * (short > 0)
    t = f.dtype.type(1.35)
    near = np.clip(f - y, -t, t)
    return near * (f - y) - near**2 / 2, near, 1.0 * (np.abs(f - y) < t)


def objective(
    kind: str, phi: Array, y: Array, delta: Array, w: Array, mean: Array | float = 0.0, v: Array | float = 1.0
) -> Any:
    """sum_i v_i l(y_i, f_i) + R(w)."""
    f = phi @ w.reshape(y.shape[1], -1).T
    with np.errstate(over="ignore"):
        if kind == "binary":
            total = np.logaddexp(0, f) - y * f
        elif kind == "classes":
            top = f.max(1, keepdims=True)
            total = top + np.log(np.exp(f - top).sum(1, keepdims=True)) - (y * f).sum(1, keepdims=True)
        elif kind == "number":
            total = (f - y) ** 2 / 2
        elif kind != "count":
            total = kinked(kind, y, f)[0]
        else:
            total = np.exp(f) - y * f
    return (v * total.sum(1)).sum() + (delta * (w - mean) ** 2).sum() / 2


def derivatives(
    kind: str,
    phi: Array,
    y: Array,
    delta: Array,
    w: Array,
    mean: Array | float = 0.0,
    weight: Array | None = None,
) -> tuple[Array, Array]:
    """Gradient and Hessian of `objective`."""
    K, D = y.shape[1], phi.shape[1]
    f = phi @ w.reshape(K, D).T
    h = means(kind, f)
    _, slope, curvature = kinked(kind, y, f) if kind in ("squared_hinge", "huber") else (None, h - y, h)
    each = np.ones(len(y)) if weight is None else weight
    gradient = ((slope * each[:, None]).T @ phi).reshape(-1) + delta * (w - mean)
    H = np.zeros((K, D, K, D), phi.dtype)
    for k in range(K):
        for j in range(K):
            if kind == "classes":
                v = h[:, k] * ((k == j) - h[:, j])
            elif kind == "binary":
                v = h[:, k] * (1 - h[:, k])
            else:
                v = np.ones(len(phi), phi.dtype) if kind == "number" else curvature[:, k]
            H[k, :, j] = (phi * (v * each)[:, None]).T @ phi
    return gradient, H.reshape(K * D, K * D) + np.diag(delta)


def solve(H: Array, b: Array) -> Array:
    """H^-1 b by Gaussian elimination without pivots, which a positive definite H does not need; any precision.

    NaN if H is singular, as that of Huber's loss is where too few rows are near.
    """
    A = np.concatenate([H, b[:, None]], 1)
    n = len(H)
    for i in range(n):
        if A[i, i] == 0:
            return np.full(n, np.nan, H.dtype)
        A[i + 1 :] -= np.outer(A[i + 1 :, i] / A[i, i], A[i])
    x = np.zeros(n, H.dtype)
    for i in reversed(range(n)):
        x[i] = (A[i, -1] - A[i, i + 1 : n] @ x[i + 1 :]) / A[i, i]
    return x


def walk(phi: np.ndarray, y: np.ndarray, delta: float, start: np.ndarray, root: np.ndarray, steps: int) -> np.ndarray:
    """Weights of the true posterior of a logistic regression, by random-walk Metropolis along `root`."""
    rng, w, out = np.random.default_rng(0), start.copy(), []

    def value(w: np.ndarray) -> float:
        f = phi @ w
        return float(np.logaddexp(0, f).sum() - y @ f + delta / 2 * w @ w)

    here, scale = value(w), 2.4 / np.sqrt(len(w))
    for _ in range(steps):
        there = w + scale * root @ rng.standard_normal(len(w))
        new = value(there)
        if np.log(rng.random()) < here - new:
            w, here = there, new
        out.append(w)
    return np.array(out[steps // 10 :])
