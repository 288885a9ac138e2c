"""The weights of a GLM, and combinations of them, that examples have a say in.

Of a feature that is zero in all examples the penalty alone decides; and, as a softmax knows differences of classes
alone, of what is added to the weights of all classes. The Hessian of any data leaves both apart: there it is the
penalty. So what examples leave uncertain, and the curvature that limits it, is all in the rest.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

if TYPE_CHECKING:
    from core.kprior.anchor import Anchor


@dataclass(frozen=True)
class InformedSpace:
    """Of K outputs and D features."""

    outputs: int
    features: Tensor
    """(D,) bool: which of them any example has."""
    differences: bool
    """Whether differences of classes are all there is: where each class has the same penalty."""

    @classmethod
    def of(cls, anchor: Anchor, delta: Tensor, outputs: int) -> InformedSpace:
        """What the sums at an anchor tell of their examples. What has no penalty is never left out."""
        assert anchor.curvature is not None
        G = anchor.curvature.tensors()["matrix"]
        spoken = (G.diagonal() != 0) | (anchor.gradient != 0) | (delta == 0)
        penalty = delta.view(outputs, -1)
        differences = outputs > 1 and bool((penalty == penalty[0]).all())
        return cls(outputs, spoken.view(outputs, -1).any(0), differences)

    def holds(self, other: InformedSpace) -> bool:
        """Whether all of another space is in this one."""
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
        """Of all that is not in the space; infinite if nothing is. The flat directions of a softmax do not count."""
        left = delta > 0 if self.differences else ~self.features.repeat(self.outputs)
        return float(delta[left].min()) if bool(left.any()) else math.inf

    def apart(self, v: Tensor) -> float:
        """The length of what is not in the space of a vector (P,)."""
        V = v.view(self.outputs, -1)
        inside = torch.where(self.features, V - V.mean(0) if self.differences else V, 0.0)
        return float((V - inside).norm())
