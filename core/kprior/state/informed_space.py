"""The space of weights of a GLM that examples determine.

The penalty alone determines the weights of a feature that is zero in all examples. A softmax depends on differences of
classes alone, so the penalty also determines what is added to the weights of all classes. In these directions the
Hessian is the penalty. All uncertainty, and the curvature that limits it, is in the remaining space.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from core.kprior.model.families import Family
from core.kprior.state.anchor import Anchor


@dataclass(frozen=True)
class InformedSpace:
    """Of K outputs and D features."""

    outputs: int
    features: Tensor
    """(D,) bool: whether any example has the feature."""
    differences: bool
    """Whether only differences of classes matter, because each class has the same penalty."""

    @classmethod
    def of(cls, anchor: Anchor, delta: Tensor, family: Family) -> InformedSpace:
        """The space of the examples in the sums of an anchor. Weights without a penalty always belong to it."""
        outputs = family.outputs
        assert anchor.curvature is not None
        G = anchor.curvature.tensors()["matrix"]
        spoken = (G.diagonal() != 0) | (anchor.gradient != 0) | (delta == 0)
        penalty = delta.view(outputs, -1)
        differences = family.coupled and bool((penalty == penalty[0]).all())
        return cls(outputs, spoken.view(outputs, -1).any(0), differences)

    def holds(self, other: InformedSpace) -> bool:
        """Whether another space is a subspace of this one."""
        return bool((self.features | ~other.features).all()) and (other.differences or not self.differences)

    def restrict(self, H: Tensor) -> Tensor:
        """A Hessian (P, P), in an orthonormal basis of the space."""
        K, D = self.outputs, len(self.features)
        some = H.view(K, D, K, D)[:, self.features][:, :, :, self.features]
        if self.differences:
            basis = torch.linalg.qr(torch.eye(K).to(H)[:, 1:] - 1 / K)[0]
            some = torch.einsum("ka,kdle,lb->adbe", basis, some, basis)
        size = some.shape[0] * some.shape[1]
        return some.reshape(size, size)

    def least_penalty(self, delta: Tensor) -> float:
        """The smallest penalty outside the space, without the flat directions of a softmax; infinite if there is
        none."""
        left = delta > 0 if self.differences else ~self.features.repeat(self.outputs)
        return float(delta[left].min()) if bool(left.any()) else math.inf

    def apart(self, v: Tensor) -> float:
        """The length of the component of a vector (P,) outside the space."""
        V = v.view(self.outputs, -1)
        inside = torch.where(self.features, V - V.mean(0) if self.differences else V, 0.0)
        return float((V - inside).norm())
