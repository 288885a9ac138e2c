"""One objective for every task: soft-label losses plus a quadratic in the weights.

    K(w) = sum_terms sum_i v_i l(t_i, f_i(w)) + sum_k c_k' f_k(w)
         + 1/2 (w - w*)' Q (w - w*) + 1/2 sum_j delta_j w_j^2 + b' w

Full retrains, replay, weight priors, distillation and K-priors differ only in what they put in here, and so all run
on the same solvers. `build.py` says which term of the paper each of these is.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor

from core.kprior.cost import Cost
from core.kprior.curvature import Curvature, Full
from core.kprior.model.predictor import Predictor
from core.kprior.objective.terms import Term


@dataclass
class Objective:
    """K(w), its gradient and, for GLMs, its Hessian."""

    predictor: Predictor
    delta: Tensor
    """(P,) of the new regularizer G."""
    linear: Tensor
    """(P,) b."""
    terms: list[Term] = field(default_factory=list)
    removed: list[tuple[Tensor, Tensor]] = field(default_factory=list)
    """Removed examples of a network: encoded inputs and the coefficients c_k = y_k - h*_k of their outputs."""
    curvature: Curvature | None = None
    centre: Tensor | None = None
    """Q and w*."""

    def smooth_part(self, w: Tensor) -> Tensor:
        """All that is a function of the weights alone; differentiable."""
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
            value += term.scale * loss.value
            gradient = gradient + term.scale * loss.gradient
            if H is not None:
                H += term.scale * loss.hessian
            cost.backward_passes += loss.count
            cost.data_passes += term.past
        for z, coefficient in self.removed:
            at = w.detach().requires_grad_()
            away = (self.predictor.outputs_of_encoded(at, z) * coefficient).sum()
            gradient = gradient + torch.autograd.grad(away, at)[0]
            value += float(away.detach())
            cost.backward_passes += len(z)
        return value, gradient, H
