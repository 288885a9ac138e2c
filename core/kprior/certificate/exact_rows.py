"""Examples at hand, whose exact terms replace their part of the sums at an anchor."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from core.kprior.curvature import glm_hessian
from core.kprior.model.families import Family


@dataclass(frozen=True)
class ExactRows:
    """Examples whose exact terms replace their part of the sums: features, and outputs at the anchor."""

    phi: Tensor
    """(n, D)."""
    f0: Tensor
    """(n, K)."""
    y: Tensor
    """(n, K)."""
    weight: Tensor | None = None
    """(n,) their weights; None if all are one."""

    def weighted(self, values: Tensor) -> Tensor:
        """Values (n, K), multiplied by the weight of each row."""
        return values if self.weight is None else values * self.weight[:, None]

    def outputs(self, w: Tensor) -> Tensor:
        """f at other weights: (n, K)."""
        return self.phi @ w.view(self.f0.shape[1], -1).T

    def bend(self, family: Family, f: Tensor, beyond_second_order: bool = False) -> Tensor:
        """The difference of each row's slope at f from its tangent at f0: h(f) - h(f0) - h'(f0) (f - f0), (n, K).

        Without its own second-order term h''(f0) (f - f0)^2 / 2, if the sums include that.
        """
        turn = family.residual(self.y, f) - family.residual(self.y, self.f0) if family.kinked else None
        turn = family.mean(f) - family.mean(self.f0) if turn is None else turn
        turn = turn - self.tangent(family, f - self.f0)
        if not beyond_second_order:
            return turn
        slope = family.slope_of_variance(self.f0)
        assert slope is not None
        return turn - slope * (f - self.f0) ** 2 / 2

    def hessian(self, family: Family, f: Tensor) -> Tensor:
        """Their curvature at outputs f: (P, P)."""
        return glm_hessian(self.phi, family, f, self.weight, self.y)

    def tangent(self, family: Family, step: Tensor) -> Tensor:
        """h'(f0) (f - f0), given f - f0: (n, K)."""
        if not family.coupled:
            return family.curvature(self.y, self.f0) * step
        p = family.mean(self.f0)
        return p * (step - (p * step).sum(1, keepdim=True))
