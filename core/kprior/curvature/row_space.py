"""The preconditioner of a GLM with fewer rows than features: its Hessian in the space of the rows.

With few rows, each row moves thousands of weights at once, and the rows almost determine an unpenalised bias. A
diagonal preconditioner, or a block with an artificial penalty, captures neither and makes the solver slow. Per output,
with penalised features Phi_p (penalties Delta), unpenalised features Phi_f and variances V, all matrices are n x n:

    M = V^-1 + Phi_p Delta^-1 Phi_p'            (Woodbury)
    (Phi' V Phi + Delta) (a, b) = (q, r)   is   (Phi_f' M^-1 Phi_f) b = r - Phi_f' M^-1 Phi_p Delta^-1 q
                                                a = Delta^-1 (q - Phi_p' M^-1 (Phi_p Delta^-1 q + Phi_f b))
"""

from collections.abc import Callable

import torch
from torch import Tensor

from core.kprior.data.examples import Examples
from core.kprior.model.predictor import Predictor

MAX_ROWS, MAX_NUMBERS = 1_000, 2**25
"""Largest number of rows and of feature values: all are in memory, and their Gram matrix is factored."""
MIN_VARIANCE = 1e-12
"""Replaces a variance of zero, which has no inverse."""


def has_few_rows(predictor: Predictor, count: int, delta: Tensor) -> bool:
    """Whether there are few rows, and all but a few weights are penalised."""
    D = predictor.size // predictor.family.outputs
    small = 0 < count < D and count <= MAX_ROWS and count * D <= MAX_NUMBERS
    return predictor.linear and small and int((delta.view(-1, D) == 0).sum(1).max()) < count


def row_space_inverse(predictor: Predictor, w: Tensor, rows: Examples, delta: Tensor) -> Callable[[Tensor], Tensor]:
    """A function that solves (G + diag(delta)) u = v for u: (P,) -> (P,), G being the curvature at w of all rows.

    The rows are encoded, and `delta` (P,) is zero for unpenalised weights. Like `Blocks`, the function treats the
    curvature between two outputs of a softmax as zero.
    """
    K = predictor.family.outputs
    phi = rows.x.double()
    f = phi @ w.double().view(K, -1).T
    variance = predictor.family.curvature(rows.y.to(f), f)
    if rows.weight is not None:
        variance = variance * rows.weight.to(variance)[:, None]
    penalty = delta.double().view(K, -1)
    solvers = [solver_of_output(phi, variance[:, k].clamp(min=MIN_VARIANCE), penalty[k]) for k in range(K)]

    def solve(v: Tensor) -> Tensor:
        right = v.double().view(K, -1)
        return torch.stack([solver(right[k]) for k, solver in enumerate(solvers)]).reshape(-1).to(v)

    return solve


def solver_of_output(phi: Tensor, variance: Tensor, penalty: Tensor) -> Callable[[Tensor], Tensor]:
    """`row_space_inverse` for one output: phi (n, D), variance (n,), penalty (D,)."""
    free = penalty == 0
    phi_free, phi_held = phi[:, free], phi[:, ~free]
    scaled = phi_held / penalty[~free]
    factor = torch.linalg.cholesky(scaled @ phi_held.T + torch.diag(1 / variance))
    solved_free = torch.cholesky_solve(phi_free, factor)
    schur = phi_free.T @ solved_free

    def solve(v: Tensor) -> Tensor:
        through = scaled @ v[~free]
        b = torch.linalg.lstsq(schur, (v[free] - solved_free.T @ through)[:, None]).solution[:, 0]
        inner = torch.cholesky_solve((through + phi_free @ b)[:, None], factor)[:, 0]
        found = torch.empty_like(v)
        found[free], found[~free] = b, (v[~free] - phi_held.T @ inner) / penalty[~free]
        return found

    return solve
