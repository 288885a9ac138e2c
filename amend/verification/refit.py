"""Minimises an objective with scipy, and bounds how far the result can be from the exact minimum.

The start is zero, not the weights under test. L-BFGS comes first, then Newton steps that are accepted if they reduce
the gradient, which, unlike the value, can be compared down to rounding error.

**Error of the result.** Let g be the gradient at the result, with a rounding error of at most e, and lambda the
smallest eigenvalue of the Hessian there. If the Hessian stays at least half as large within r = 2 (|g| + e) / lambda,
then F is lambda/2-strongly convex in that ball, and the minimum is in it. The Hessian of an output changes by a factor
of at most exp(concordance |x| r) within the ball; losses with kinks use a Hessian without the rows whose kink is near.
"""

import warnings
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from scipy.linalg import LinAlgError, LinAlgWarning, cho_factor, cho_solve, eigvalsh
from scipy.optimize import minimize
from scipy.sparse.linalg import LinearOperator, cg

from amend.verification.families import Array
from amend.verification.findings import Undecided
from amend.verification.objective import EPSILON, Objective

MAX_DENSE = 3000
"""Number of weights up to which the Hessian is stored."""
LBFGS_STEPS, NEWTON_STEPS, CG_STEPS, HALVINGS = 500, 40, 500, 30
CG_TOLERANCE = 1e-4
MAX_FREE = 200
"""Number of unpenalised weights up to which their curvature is computed if there are more than MAX_DENSE weights."""
KINK_MARGIN = 1e-7
"""Rows whose output is closer to a kink than this do not count towards the curvature, as a fraction of max |f|."""


@dataclass(frozen=True)
class Refit:
    """The minimum of an objective: weights (P,), and how far they can be from the exact minimum."""

    weights: Array
    gradient_norm: float
    error: float


def refit(objective: Objective) -> Refit:
    """Minimise an objective. Raises Undecided if the precision of the result cannot be bounded."""
    w = polish(objective, approach(objective))
    _, gradient = objective.evaluate(w)
    norm = float(np.linalg.norm(gradient))
    if not np.isfinite(norm):
        raise Undecided("The refit did not converge: its gradient is not finite.")
    return Refit(w, norm, bound_error(objective, w, norm))


def approach(objective: Objective) -> Array:
    """L-BFGS from zero, to about half of all digits."""
    start = np.zeros(objective.delta.size)
    with np.errstate(over="ignore", invalid="ignore"):
        found = minimize(
            objective.evaluate, start, jac=True, method="L-BFGS-B", options={"maxiter": LBFGS_STEPS, "maxcor": 20}
        )
    return np.asarray(found.x) if np.isfinite(found.x).all() and np.isfinite(found.fun) else start


def polish(objective: Objective, w: Array) -> Array:
    """Newton steps until the gradient is as small as its rounding error, or no longer decreases."""
    _, gradient = objective.evaluate(w)
    norm = np.linalg.norm(gradient)
    for _ in range(NEWTON_STEPS):
        if norm <= objective.gradient_error(w) / 4:
            break
        direction = newton_direction(objective, w, gradient)
        scale = 1.0
        for _ in range(HALVINGS):
            moved = w + scale * direction
            with np.errstate(over="ignore", invalid="ignore"):
                _, new = objective.evaluate(moved)
            if np.linalg.norm(new) < (1 - 1e-3 * scale) * norm:
                break
            scale /= 2
        else:
            break
        w, gradient, norm = moved, new, np.linalg.norm(new)
    return w


def newton_direction(objective: Objective, w: Array, gradient: Array) -> Array:
    size = objective.delta.size
    if size <= MAX_DENSE:
        hessian = fill_shift(objective, objective.hessian(w))
        # a tiny ridge keeps the factorisation possible where a kinked loss is flat; it only slows the last digits down
        hessian.flat[:: size + 1] += 1e-14 * hessian.trace() / size
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", LinAlgWarning)
                return np.asarray(-cho_solve(cho_factor(hessian), gradient))
        except LinAlgError:
            return -gradient / (np.linalg.norm(gradient) + 1)
    multiply = objective.multiply_hessian(w)
    operator = LinearOperator((size, size), matvec=multiply, dtype=np.float64)
    inverse = LinearOperator((size, size), matvec=diagonal_inverse(objective, w), dtype=np.float64)
    step, _ = cg(operator, -gradient, rtol=CG_TOLERANCE, maxiter=CG_STEPS, M=inverse)
    return objective.without_shift(step.reshape(objective.shape)).ravel()


def diagonal_inverse(objective: Objective, w: Array) -> Callable[[Array], Array]:
    """Division by the Hessian's diagonal, the preconditioner of conjugate gradients."""
    c = objective.sample_weights[:, None] * objective.family.curvature(objective.targets, objective.outputs(w))
    squares = objective.features.multiply(objective.features) if sparse(objective) else objective.features**2
    diagonal = np.asarray(squares.T @ c).T + objective.delta
    scale = np.maximum(diagonal, EPSILON * diagonal.max()).ravel()
    return lambda v: v.ravel() / scale


def sparse(objective: Objective) -> bool:
    return hasattr(objective.features, "toarray")


def fill_shift(objective: Objective, hessian: Array) -> Array:
    """Fill in the directions in which a softmax is flat, so that the Hessian can be inverted in all others."""
    classes, columns = objective.shape
    scale = hessian.trace() / len(hessian) / classes
    for column in np.flatnonzero(objective.shifted()):
        same = np.arange(classes) * columns + column
        hessian[np.ix_(same, same)] += scale
    return hessian


def bound_error(objective: Objective, w: Array, gradient_norm: float) -> float:
    """Upper bound on the distance between w and the minimum; see the start of this module."""
    outputs = abs(objective.outputs(w)).max(initial=0.0)
    margin = KINK_MARGIN * max(1.0, float(outputs)) if objective.family.kinked else 0.0
    smallest, everywhere = smallest_curvature(objective, w, margin)
    distance = (gradient_norm + objective.gradient_error(w)) / smallest
    if everywhere:
        return distance
    radius = 2 * distance
    reach = float(np.sqrt(squared_lengths(objective).max(initial=0.0))) * radius
    if reach > margin if objective.family.kinked else objective.family.concordance * reach > np.log(2):
        raise Undecided(
            f"The refit did not converge: its gradient has the norm {gradient_norm:.1e}, and the minimum may be "
            f"{radius:.1e} away."
        )
    return radius


def smallest_curvature(objective: Objective, w: Array, margin: float) -> tuple[float, bool]:
    """A lower bound of the Hessian's smallest eigenvalue, and whether it holds for all weights."""
    penalty = float(objective.delta.min())
    if objective.delta.size <= MAX_DENSE:
        values = eigvalsh(fill_shift(objective, objective.hessian(w, margin)))
        smallest = float(values[0] - len(values) * EPSILON * values[-1])
        if smallest > penalty:
            return smallest, False
    elif penalty == 0:
        smallest = wide_curvature(objective, w, margin)
        if smallest > 0:
            return smallest, False
    if penalty > 0:
        return penalty, True
    raise Undecided("The rows and the penalty do not determine the minimum precisely enough to compare with it.")


def wide_curvature(objective: Objective, w: Array, margin: float) -> float:
    """A lower bound of the smallest eigenvalue if only a few weights, usually the biases, are unpenalised; else 0.

    In blocks of penalised and free weights, the Hessian is [[M, C], [C', B]] with M >= delta. With Z = M^-1 C and the
    Schur complement S = B - C'Z, its inverse is [[M^-1, 0], [0, 0]] + [-Z; I] S^-1 [-Z; I]', so the inverse's norm is
    at most 1/delta + (1 + |Z|^2) / lambda(S). Conjugate gradients compute Z up to a residual R = C - M Z, which changes
    Z by at most |R| / delta and S by at most |C| |R| / delta.
    """
    penalised = (objective.delta > 0).ravel()
    free = np.flatnonzero(~penalised)
    if len(free) > MAX_FREE or not penalised.any():
        return 0.0
    multiply, size = objective.multiply_hessian(w, margin), len(penalised)
    columns = np.stack([multiply(np.eye(1, size, int(index))[0]) for index in free], 1)
    biases, coupling = columns[free], columns * penalised[:, None]
    # in a softmax, a constant added to all biases has no effect
    if objective.shifted().any():
        biases = biases + biases.trace() / len(free) ** 2
    operator = LinearOperator((size, size), matvec=lambda v: penalised * multiply(penalised * v.ravel()), dtype=float)
    inverse = LinearOperator((size, size), matvec=diagonal_inverse(objective, w), dtype=float)
    solved = [cg(operator, column, rtol=CG_TOLERANCE**2, maxiter=CG_STEPS, M=inverse)[0] for column in coupling.T]
    z = np.stack(solved, 1) * penalised[:, None]
    delta = float(objective.delta[objective.delta > 0].min())
    off = float(np.linalg.norm(coupling - np.stack([operator @ column for column in z.T], 1))) / delta
    schur = biases - coupling.T @ z
    smallest = float(eigvalsh((schur + schur.T) / 2)[0])
    smallest -= off * float(np.linalg.norm(coupling)) + EPSILON * np.sqrt(size) * float(abs(biases).sum())
    return 0.0 if smallest <= 0 else 1 / (1 / delta + (1 + (np.linalg.norm(z) + off) ** 2) / smallest)


def squared_lengths(objective: Objective) -> Array:
    """|x_i|^2 (n,)."""
    x = objective.features
    return np.asarray((x.multiply(x) if sparse(objective) else x * x).sum(1)).ravel()
