"""Newton's method, for GLMs whose Hessian fits."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from core.kprior.cost import Cost
from core.kprior.curvature import cholesky
from core.kprior.model.gauge import shift_directions, without_shift
from core.kprior.objective.objective import Objective
from core.kprior.solvers.base import Progress, Solution, SolverError, Training

FALLEN = 1 / 16
"""The share of a step from which on that is given up, where curvature jumps."""


def newton(
    objective: Objective, start: Tensor, training: Training, cost: Cost, progress: Progress | None = None
) -> Solution:
    """Newton's method with backtracking; one pass over the terms per step."""
    shifts = shift_directions(objective.predictor, objective.delta)
    w = without_shift(start, shifts)
    value, gradient, H = objective.evaluate(w, cost, hessian=True)
    if not math.isfinite(value):
        w = torch.zeros_like(w)  # counts overflow far from where they belong, but never at zero
        value, gradient, H = objective.evaluate(w, cost, hessian=True)
    if not math.isfinite(value) or not bool(gradient.isfinite().all()):
        raise SolverError("the objective is not finite at the start: check the examples for extreme values")
    for iteration in range(100):
        assert H is not None
        if shifts is not None:
            H = H + H.diagonal().mean() * shifts @ shifts.T
        try:
            factor = cholesky(H)
        except ArithmeticError as error:
            raise SolverError(
                "the objective is not convex where it should be: the memory's weights are too large"
            ) from error
        step = -torch.cholesky_solve(gradient[:, None], factor)[:, 0]
        decrement = -float(gradient @ step)
        if decrement / 2 <= training.tolerance * (1 + abs(value)):
            # the step is taken all the same: it costs no pass and squares the error
            return Solution(w + step, True, H)
        t, accepted = 1.0, False
        kinked = objective.predictor.family.kinked
        for _ in range(40):
            new_value, new_gradient, new_H = objective.evaluate(w + t * step, cost, hessian=True)
            if new_value <= value - 1e-4 * t * decrement + 1e-12 * abs(value) and bool(new_gradient.isfinite().all()):
                accepted = True
                break
            t /= 2
            if kinked and t < FALLEN:  # curvature jumps on the way: a quadratic above the objective leads down for sure
                kinked, t = False, 1.0
                _, _, above = objective.evaluate(w, cost, hessian=True, majorant=True)
                assert above is not None
                step = -torch.cholesky_solve(gradient[:, None], cholesky(above))[:, 0]
                decrement = -float(gradient @ step)
        if not accepted:
            raise SolverError("Newton's method found no descent: the problem is too ill-conditioned")
        w, value, gradient, H = w + t * step, new_value, new_gradient, new_H
        if progress:
            progress(min(0.95, (iteration + 1) / 12), f"Newton step {iteration + 1}")
    raise SolverError("no minimum was found in 100 Newton steps: nothing holds the weights where they are")
