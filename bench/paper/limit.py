"""The optimal K-prior of the paper's Appendix A: singular directions of the features in the place of rows.

With the left singular vectors U of the past's features and the weights beta* of the appendix, M directions give

    grad K(w) = U_M U_M' sum_i phi_i (h(f_i) - h(f*_i)) + grad of all else,

which is the past's own gradient once M is the rank. But beta* depends on w and on all past inputs: it is a limit, and
no method. What could be kept in the place of rows are eigenvectors of G, with weights that give its curvature at w*.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from bench.problems import Problem
from core.kprior import AddData, Cost, Examples, RemoveData, State
from core.kprior.curvature import glm_hessian
from core.kprior.data.examples import chunks_of
from core.kprior.model.predictor import Predictor
from core.kprior.model.regularizers import regularizer_of
from core.kprior.objective.objective import Objective
from core.kprior.objective.terms import Term
from core.kprior.objective.transfer import shared_parameters
from core.kprior.solvers import Training, solve

STEPS = 200
TOLERANCE = 1e-9
"""Tolerance of the gradient, relative to its initial norm."""


@dataclass(frozen=True)
class Pieces:
    """A task of a GLM of one output in features: what every K-prior of it is made of."""

    predictor: Predictor
    old: Tensor
    """(P,) A w*: the old weights that the new model shares."""
    phi: Tensor
    """(n, P) features of the retained rows."""
    soft: Tensor
    """(n, 1) predictions of the old model."""
    linear: Tensor
    """(P,) the removal term, and -grad R(w*)."""
    delta: Tensor
    added: list[tuple[Tensor, Tensor]]

    @classmethod
    def of(cls, base: State, problem: Problem) -> Pieces:
        new = Predictor(problem.new_spec)
        if new.family.outputs > 1 or not new.linear or not base.predictor.linear:
            raise ValueError("the optimal K-prior is for linear models of one output")
        shared = shared_parameters(base.predictor, new)
        assert shared is not None
        old, linear = torch.zeros(new.size, dtype=new.dtype), torch.zeros(new.size, dtype=new.dtype)
        old[shared[0]] = base.w[shared[1]]
        linear[shared[0]] = -base.regularizer.gradient(base.w)[shared[1]]
        for rows in rows_of(problem, RemoveData):
            phi = new.features(rows.x)
            linear += phi.T @ (rows.y.to(phi) - old_predictions(base, rows))[:, 0]
        past = problem.past
        delta = regularizer_of(problem.new_spec["regularizer"], new).delta
        added = [(new.features(rows.x), rows.y.to(torch.float64)) for rows in rows_of(problem, AddData)]
        return cls(new, old, new.features(past.x), old_predictions(base, past), linear, delta, added)

    def objective(self) -> Objective:
        """K without its function-space term."""
        terms = [Term.of_features(self.predictor, phi, y) for phi, y in self.added]
        return Objective(self.predictor, self.delta, self.linear, terms)


def rows_of(problem: Problem, kind: type[AddData] | type[RemoveData]) -> list[Examples]:
    """The added or removed rows."""
    return list(chunks_of([task.data for task in problem.tasks if isinstance(task, kind)]))


def old_predictions(base: State, rows: Examples) -> Tensor:
    """(n, K) predictions of the old model."""
    parts = [base.predictor.family.mean(base.predictor.outputs(base.w, part)) for part in rows.x.split(1024)]
    return torch.cat(parts)


def optimal_prior(pieces: Pieces, size: int, start: Tensor) -> Tensor:
    """Where the gradient of the optimal K-prior with `size` directions is zero, by Newton's method.

    It is no gradient of anything: beta* moves with w. So steps are judged by its length.
    """
    predictor, phi = pieces.predictor, pieces.phi
    rest, family, cost = pieces.objective(), predictor.family, Cost()
    U = torch.linalg.eigh(phi.T @ phi)[1].flip(1)[:, :size]

    def force(w: Tensor) -> tuple[Tensor, Tensor]:
        f = (phi @ w)[:, None]
        past = phi.T @ (family.mean(f) - pieces.soft)[:, 0]
        _, gradient, hessian = rest.evaluate(w, cost, hessian=True)
        assert hessian is not None
        return gradient + U @ (U.T @ past), hessian + U @ (U.T @ glm_hessian(phi, family, f))

    w = start
    value, jacobian = force(w)
    enough = TOLERANCE * max(1.0, float(value.norm()))
    for _ in range(STEPS):
        if float(value.norm()) <= enough:
            break
        step, length = torch.linalg.solve(jacobian, value), 1.0
        while length > 1e-6:
            tried = force(w - length * step)
            if float(tried[0].norm()) <= (1 - length / 4) * float(value.norm()):
                break
            length /= 2
        else:
            break
        w, (value, jacobian) = w - length * step, tried
    return w


def directions_prior(pieces: Pieces, size: int, start: Tensor) -> Tensor:
    """The same with weights that can be kept: beta_j = s_j / h'(f*(u_j)) for the eigenpairs (s_j, u_j) of G at w*."""
    predictor, family = pieces.predictor, pieces.predictor.family
    G = glm_hessian(pieces.phi, family, pieces.phi @ pieces.old[:, None])
    s, U = (part.flip(-1) for part in torch.linalg.eigh(G))
    u = U[:, :size].T.contiguous()
    f = u @ pieces.old[:, None]
    beta = s[:size].clamp(min=0) / family.variance(f)[:, 0]
    objective = pieces.objective()
    objective.terms.append(Term.of_features(predictor, u, family.mean(f), beta))
    return solve(objective, start, Training(), Cost()).w
