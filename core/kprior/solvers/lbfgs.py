"""L-BFGS, for GLMs whose Hessian is too large."""

import torch
from torch import Tensor

from core.kprior.objective.objective import Objective
from core.kprior.passes.cost import Cost
from core.kprior.solvers.base import Progress, Solution, SolverError


def lbfgs(objective: Objective, start: Tensor, cost: Cost, progress: Progress | None = None) -> Solution:
    """L-BFGS with a strong Wolfe line search, for GLMs whose Hessian is too large."""
    w = start.clone().requires_grad_()
    value, gradient, _ = objective.evaluate(start, cost)
    tolerance = 1e-8 * (1 + abs(value))
    optimizer = torch.optim.LBFGS(
        [w],
        max_iter=50,
        history_size=50,
        tolerance_grad=tolerance,
        tolerance_change=1e-15 * (1 + float(start.norm())),
        line_search_fn="strong_wolfe",
    )

    def closure() -> float:
        total, w.grad, _ = objective.evaluate(w.detach(), cost)
        return total

    last = value
    for round_ in range(40):
        optimizer.step(closure)
        value, gradient, _ = objective.evaluate(w.detach(), cost)
        if not bool(w.isfinite().all()) or not bool(gradient.isfinite().all()):
            raise SolverError("The objective is not finite. Check the examples for extreme values.")
        if float(gradient.abs().max()) <= tolerance:
            return Solution(w.detach(), True)
        if value >= last - 1e-14 * abs(last):
            break
        last = value
        if progress:
            progress((round_ + 1) / 40, f"L-BFGS round {round_ + 1}")
    return Solution(w.detach(), float(gradient.norm()) <= 1e-4 * (1 + abs(value)))
