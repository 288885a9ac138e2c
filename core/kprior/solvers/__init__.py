"""Solvers: Newton for GLMs while P allows, L-BFGS beyond, Adam for networks.

All take an `Objective` and a start, count their cost, and never hand back weights that are not finite.
"""

from __future__ import annotations

import torch
from torch import Tensor

from core.kprior.cost import Cost
from core.kprior.curvature import Full, is_wide
from core.kprior.objective.objective import Objective
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
    """The minimiser of an objective, by the solver that fits it.

    Parameters
    ----------
    objective
        K(w).
    start
        (P,) weights to begin with.
    training
        How a network is trained; the tolerance of Newton's method.
    cost
        Counts what is spent.
    progress
        Called with a share of 0..1 and a phrase; may raise to stop the work.
    watch
        Called after each step of a network's training; True ends it.

    Raises
    ------
    SolverError
        If no finite minimiser can be found.
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
            # a model that is far too sure has no curvature left to start from; at zero there is all of it
            return newton(objective, torch.zeros_like(start), training, cost, progress)
    return lbfgs(objective, start, cost, progress)
