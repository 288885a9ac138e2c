"""What lets any model change into a linear one: least squares of its outputs on the plain inputs.

For a new linear model theta the past contributes, to second order, sum_i s_i/2 |phi_i' theta - f*_i|^2 with
s_i a slope of h between f*_i and what the new model will say. That is unknown, but a smaller class explains less:
its outputs shrink. s_i is taken as the mean slope of h from f*_i to SHRINK f*_i, where the tangent h'(f*_i) would be
nearly zero for every example the old model was sure of. The sums phi phi' s and phi f*' s are carried like curvature.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from core.kprior.encoders import size_of
from core.kprior.predictor import Predictor

SHRINK = 1 / 3
LIMIT = 2_000
"""Inputs up to which the sums are kept."""


@dataclass
class Surrogate:
    """sum_i v_i s_i phi_i phi_i' (D, D) and sum_i v_i s_i phi_i f*_i' (D, K); phi = encoded inputs and 1."""

    gram: Tensor
    cross: Tensor

    @classmethod
    def zeros(cls, predictor: Predictor) -> Surrogate | None:
        """None where it would be of no use: a model that is linear already, or too many inputs."""
        size = size_of(predictor.encoder.shape) + 1
        plain = predictor.linear and predictor.body.degree == 1
        if plain or size > LIMIT:
            return None
        options = {"dtype": torch.float64, "device": predictor.device}
        return cls(torch.zeros(size, size, **options), torch.zeros(size, predictor.family.outputs, **options))  # type: ignore[call-overload]

    def copy(self) -> Surrogate:
        """An independent copy."""
        return Surrogate(self.gram.clone(), self.cross.clone())

    def add(self, predictor: Predictor, w: Tensor, x: Tensor, weight: Tensor | None = None) -> None:
        """Add examples, or with negative weights take them away."""
        z = predictor.encode(x)
        f = predictor.outputs_of_encoded(w, z).double()
        if f.shape[1] > 1:
            f = f - f.mean(1, keepdim=True)
        z = z.flatten(1).double()
        phi = torch.cat([z, torch.ones_like(z[:, :1])], 1)
        s = predictor.family.secant(f, SHRINK)
        scaled = phi * (s if weight is None else s * weight.double())[:, None]
        self.gram += scaled.T @ phi
        self.cross += scaled.T @ f
