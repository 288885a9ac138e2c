"""One objective for every task: soft-label losses plus a quadratic in the weights.

    K(w) = sum_terms sum_i v_i l(t_i, f_i(w))
         + 1/2 (w - w*)' Q (w - w*) + 1/2 sum_j delta_j w_j^2 + b' w

Full retrains and K-priors (and, in `bench`, replay, weight priors and distillation) differ only in these parts, so all
use the same solvers. `kprior_objective.py` says which term of the paper each part is.
"""

from dataclasses import dataclass, field

import torch
from torch import Tensor

from core.kprior.curvature import Curvature, Full
from core.kprior.model.predictor import Predictor
from core.kprior.objective.terms import Term
from core.kprior.passes.cost import Cost


@dataclass
class Objective:
    """K(w), its gradient and, for GLMs, its Hessian."""

    predictor: Predictor
    delta: Tensor
    """(P,) the penalties of the new regularizer G."""
    linear: Tensor
    """(P,) b."""
    terms: list[Term] = field(default_factory=list)
    curvature: Curvature | None = None
    centre: Tensor | None = None
    """Q and w*."""

    def smooth_part(self, w: Tensor) -> Tensor:
        """The part that does not depend on rows; differentiable."""
        value = 0.5 * (self.delta * w * w).sum() + (self.linear * w).sum()
        if self.curvature is not None and self.centre is not None:
            step = w - self.centre
            value = value + 0.5 * (step * self.curvature.product(step)).sum()
        return value

    def evaluate(self, w: Tensor, cost: Cost, hessian: bool = False) -> tuple[float, Tensor, Tensor | None]:
        """Value, gradient and (GLM, on demand) Hessian in one pass over the terms.

        Returns
        -------
        value, gradient, hessian
            A number, (P,), and (P, P) or None.
        """
        value = float(self.smooth_part(w))
        gradient = self.delta * w + self.linear
        H = torch.diag(self.delta) if hessian else None
        if self.curvature is not None and self.centre is not None:
            gradient = gradient + self.curvature.product(w - self.centre)
            if H is not None:
                assert isinstance(self.curvature, Full)
                H = H + self.curvature.matrix
        for term in self.terms:
            loss = term.evaluate(w, hessian)
            value += loss.value
            gradient = gradient + loss.gradient
            if H is not None:
                H += loss.hessian
            cost.backward_passes += loss.count
            cost.data_passes += term.past
        return value, gradient, H
