"""Solvers: Newton for GLMs whose Hessian fits, L-BFGS for larger ones, Adam for networks.

All take an `Objective` and initial weights, count their cost, and never return weights that are not finite.
"""

import torch
from torch import Tensor

from core.kprior.curvature import Full, is_wide
from core.kprior.objective.objective import Objective
from core.kprior.passes.cost import Cost
from core.kprior.solvers.adam import adam
from core.kprior.solvers.base import Progress, Solution, Solve, SolverError, Team, Training, Watch
from core.kprior.solvers.lbfgs import lbfgs
from core.kprior.solvers.newton import newton

__all__ = ["Progress", "Solution", "Solve", "SolverError", "Team", "Training", "Watch", "solve"]


def solve(
    objective: Objective,
    start: Tensor,
    training: Training,
    cost: Cost,
    progress: Progress | None = None,
    watch: Watch | None = None,
) -> Solution:
    """Minimise an objective with the solver that fits it, from `start` (P,). Raises SolverError if it finds no minimum.

    `progress` is called with a fraction in 0..1 and a phrase, and may raise to stop the work. `watch` is called after
    each step of a network's training; returning True ends the training.
    """
    predictor = objective.predictor
    if not predictor.linear:
        return adam(objective, start, training, cost, progress, watch)
    if not is_wide(predictor) and (objective.curvature is None or isinstance(objective.curvature, Full)):
        try:
            return newton(objective, start, training, cost, progress)
        except SolverError:
            if not bool(start.any()):
                raise
            # an overconfident model has almost no curvature at its weights; at zero the curvature is largest
            return newton(objective, torch.zeros_like(start), training, cost, progress)
    return lbfgs(objective, start, cost, progress)
