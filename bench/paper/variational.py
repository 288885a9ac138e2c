"""The variational posterior of an adapted GLM, with the K-prior as its prior.

    q+ = argmin_q  E_q[sum_added l_j(w)] + KL(q || q_K),   q_K ~ exp(-K)        (paper, Eq. 18)

over Gaussians q = N(m, S). K and all that is added are one objective here (`objective/build.py`), F, so this is
argmin E_q[F] - 1/2 log |S|, whose fixed point is

    0 = E_q[grad F],     S^-1 = E_q[hess F]                                      (paper, Eqs. 25 and 26)

With everything in memory F is the retained objective, and q+ the posterior that all rows would give. An output is
Gaussian under q, so expectations over weights reduce to one dimension, by a Gauss-Hermite rule. For numbers, F is
quadratic, and the result equals Laplace's posterior.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from core.kprior.adaptation.recentre import recentre
from core.kprior.curvature import cholesky
from core.kprior.data.examples import Examples
from core.kprior.model.families import Family
from core.kprior.model.uncertainty import Posterior
from core.kprior.objective.kprior_objective import build_objective
from core.kprior.objective.objective import Objective
from core.kprior.objective.tasks import Task
from core.kprior.passes.cost import Cost
from core.kprior.solvers import SolverError, Training, solve
from core.kprior.state import State
from core.kprior.state.posterior import LIKELIHOOD_FAMILIES, NoPosterior

MAX_STEPS, MIN_DECREASE = 200, 1e-10
"""The maximum number of steps, and the relative decrease of the objective at convergence."""
NODES, NODE_WEIGHTS = (torch.from_numpy(v) for v in np.polynomial.hermite_e.hermegauss(32))


@dataclass(frozen=True)
class GaussianPosterior:
    """N(mean, precision^-1) of the weights."""

    mean: Tensor
    """(P,)."""
    precision: Tensor
    """(P, P)."""

    def posterior(self) -> Posterior:
        """The posterior of predictions."""
        eye = torch.eye(len(self.mean)).to(self.mean)
        return Posterior.of(torch.linalg.solve_triangular(cholesky(self.precision), eye, upper=False), 1)


def adapt_variational(state: State, memory: Examples, tasks: Sequence[Task] = ()) -> GaussianPosterior:
    """The variational posterior of the model that `adapt` would give; without tasks, of the model as it is.

    Parameters
    ----------
    state, memory, tasks
        As for `adapt`; a GLM of one output.

    Raises
    ------
    NoPosterior
        If the model has several outputs, or a loss that is no likelihood.

    Examples
    --------
    >>> import torch
    >>> from core.kprior import AddData, Examples, MemoryPolicy, train
    >>> spec = {"input": {"kind": "vector", "dim": 1}, "target": {"kind": "binary"}}
    >>> spec |= {"architecture": {"kind": "linear"}, "regularizer": {"kind": "l2", "delta": 1.0}}
    >>> x = torch.linspace(-2, 2, 40)[:, None].double()
    >>> rows = Examples(torch.arange(40), x, (x > torch.sin(9 * x)).double())
    >>> old, new, every = rows.take(rows.key < 30), rows.take(rows.key >= 30), MemoryPolicy(fraction=1.0)
    >>> part, whole = train(spec, [old], policy=every), train(spec, [rows], policy=every)
    >>> found = adapt_variational(part.state, part.memory, [AddData([new])])
    >>> truth = adapt_variational(whole.state, whole.memory)
    >>> torch.allclose(found.mean, truth.mean), torch.allclose(found.precision, truth.precision)
    (True, True)
    """
    family = state.predictor.family
    if not state.predictor.linear or family.outputs > 1 or family.name not in LIKELIHOOD_FAMILIES:
        raise NoPosterior("a variational posterior needs a linear or kernel model of one output and a likelihood")
    cost, training = Cost(), Training()
    problem = build_objective(recentre(state, memory), memory, tasks, training.seed, cost)
    objective = problem.objective
    m = solve(objective, problem.start, training, cost).w
    _, _, H = objective.evaluate(m, cost, hessian=True)
    assert H is not None
    found = GaussianPosterior(m, H)
    value, gradient, H = expect(objective, found)
    for _ in range(MAX_STEPS):
        step, rate = torch.cholesky_solve(gradient[:, None], cholesky(H))[:, 0], 1.0
        while True:  # both at once, along the natural gradient; shorter if the step was too long
            there = GaussianPosterior(found.mean - rate * step, (1 - rate) * found.precision + rate * H)
            new_value, new_gradient, new_H = expect(objective, there)
            if new_value <= value + MIN_DECREASE * abs(value):
                break
            rate /= 2
            if rate < 1e-6:
                raise SolverError("No Gaussian was found: the expected loss does not decrease.")
        small = value - new_value <= MIN_DECREASE * abs(value) and float(gradient @ step) <= MIN_DECREASE
        found, value, gradient, H = there, new_value, new_gradient, new_H
        if small:
            break
    return found


def expect(objective: Objective, q: GaussianPosterior) -> tuple[float, Tensor, Tensor]:
    """E_q[F] - 1/2 log |S|, E_q[grad F] and E_q[hess F]."""
    factor = cholesky(q.precision)
    H = torch.diag(objective.delta)
    gradient = objective.delta * q.mean + objective.linear
    if objective.curvature is not None and objective.centre is not None:
        H = H + objective.curvature.dense(len(H))
        gradient = gradient + objective.curvature.product(q.mean - objective.centre)
    value = float(objective.smooth_part(q.mean)) + float((torch.cholesky_inverse(factor) * H).sum()) / 2
    value += float(factor.diagonal().log().sum())
    for term in objective.terms:
        for rows in term:
            spread = torch.linalg.solve_triangular(factor, rows.x.T, upper=False).square().sum(0).sqrt()
            weight = torch.ones_like(spread) if rows.weight is None else rows.weight
            loss, residual, slope = expect_rows(objective.predictor.family, rows.x @ q.mean, spread, rows.y)
            value += float(weight @ loss)
            gradient = gradient + (weight * residual) @ rows.x
            H = H + (rows.x.T * (weight * slope)) @ rows.x
    return value, gradient, H


def expect_rows(family: Family, mean: Tensor, spread: Tensor, y: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """E[l], E[h(f) - y] and E[h'(f)] for outputs N(mean, spread^2) of rows: (n,) each."""
    f = (mean[:, None] + spread[:, None] * NODES).reshape(-1, 1)
    targets, shares = y.repeat_interleave(len(NODES), 0), NODE_WEIGHTS / NODE_WEIGHTS.sum()
    each = (family.loss(targets, f), family.mean(f)[:, 0] - targets[:, 0], family.variance(f)[:, 0])
    loss, residual, slope = (v.view(len(mean), -1) @ shares for v in each)
    return loss, residual, slope
