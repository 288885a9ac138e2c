"""Newton's method, for GLMs whose Hessian fits."""

import math

import torch
from torch import Tensor

from core.kprior.curvature import cholesky
from core.kprior.model.gauge import shift_directions, without_shift
from core.kprior.objective.objective import Objective
from core.kprior.passes.cost import Cost
from core.kprior.solvers.base import Progress, Solution, SolverError, Training

MAX_STEPS, MAX_KINKED_STEPS = 100, 400
"""If curvature jumps, a step may cross only a few of the jumps, so more steps are allowed."""
SLOPE_FRACTION = 0.1
"""If curvature jumps, a step is long enough once the slope has fallen to this fraction of the initial slope."""


def newton(
    objective: Objective, start: Tensor, training: Training, cost: Cost, progress: Progress | None = None
) -> Solution:
    """Newton's method: one pass over the terms per step, and more if the step has to be shortened."""
    kinked = objective.predictor.family.kinked
    steps = MAX_KINKED_STEPS if kinked else MAX_STEPS
    shifts = shift_directions(objective.predictor, objective.delta)
    w = without_shift(start, shifts)
    value, gradient, H = objective.evaluate(w, cost, hessian=True)
    if not math.isfinite(value):
        w = torch.zeros_like(w)  # the loss of counts overflows at extreme weights, but never at zero
        value, gradient, H = objective.evaluate(w, cost, hessian=True)
    if not math.isfinite(value) or not bool(gradient.isfinite().all()):
        raise SolverError("The objective is not finite at the initial weights. Check the examples for extreme values.")
    for iteration in range(steps):
        assert H is not None
        if shifts is not None:
            H = H + H.diagonal().mean() * shifts @ shifts.T
        try:
            factor = cholesky(H)
        except ArithmeticError as error:
            raise SolverError(
                "The objective is not convex, because the weights of the memory are too large."
            ) from error
        step = -torch.cholesky_solve(gradient[:, None], factor)[:, 0]
        decrement = -float(gradient @ step)
        if decrement / 2 <= training.tolerance * (1 + abs(value)):
            # take this last step as well: it needs no pass and squares the error
            return Solution(w + step, True, H)
        t, accepted = 1.0, False
        for attempt in range(40):
            new_value, new_gradient, new_H = objective.evaluate(w + t * step, cost, hessian=True)
            if new_value <= value - 1e-4 * t * decrement + 1e-12 * abs(value) and bool(new_gradient.isfinite().all()):
                accepted = True
                break
            rise = float(new_gradient @ step)
            level = attempt == 0 and kinked and 0 < rise < math.inf
            t = find_level(objective, w, step, decrement, rise, cost) if level else t / 2
        if not accepted:
            raise SolverError(
                "Newton's method found no descent, because the problem is too ill-conditioned. Increase the penalty."
            )
        w, value, gradient, H = w + t * step, new_value, new_gradient, new_H
        if progress:
            progress(min(0.95, (iteration + 1) / 12), f"Newton step {iteration + 1}")
    held = bool((objective.delta > 0).all())
    why = (
        "With a penalty this small, more steps are needed."
        if held
        else "Some weights have no penalty, so their optimum may be infinite."
    )
    raise SolverError(f"Newton's method found no minimum in {steps} steps. {why}")


def find_level(objective: Objective, w: Tensor, step: Tensor, fall: float, rise: float, cost: Cost) -> float:
    """Find the fraction of a step at which the slope of a kinked objective is nearly zero; each trial is one pass.

    The slope along the step, -`fall` at the start and `rise` at the end, is piecewise linear and never decreases, so
    the Illinois variant of regula falsi finds its zero.
    """
    low, high, enough, before = 0.0, 1.0, SLOPE_FRACTION * fall, 0
    for _ in range(60):
        t = low + (high - low) * fall / (fall + rise)
        slope = float(objective.evaluate(w + t * step, cost)[1] @ step)
        if abs(slope) <= enough:
            return t
        side = 1 if slope > 0 else -1
        if side > 0:
            high, rise, fall = t, slope, fall / 2 if before == side else fall
        else:
            low, fall, rise = t, -slope, rise / 2 if before == side else rise
        before = side
    return low or high
