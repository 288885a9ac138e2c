"""The anchor of a GLM: weights w0 at which a pass measured all data in force, with sums that stay at these weights.

An example that comes or goes is added to the sums, or taken away from them, *at w0*: nothing of a removed example is
left in them but rounding, which is carried along as a number. The served weights w may be elsewhere; what the sums say
of the objective at w, and how surely, is in `certificate/anchored_bound.py`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from core.kprior.curvature import Curvature
from core.kprior.data.codec import Tensors, join_groups, take_group
from core.kprior.model.predictor import Predictor
from core.kprior.passes.rounding_error import EPSILON

SCALARS = ("exact", "reach", "peak", "smallest", "rounding", "mass", "value", "turnover")


@dataclass(frozen=True)
class Anchor:
    """Sums over the data in force at the weights w0; the regularizer is not in them."""

    w: Tensor
    """(P,) w0."""
    gradient: Tensor
    """(P,) sum_i phi_i (h(f_i) - y_i)."""
    curvature: Curvature | None
    """G = sum_i phi_i h'(f_i) phi_i': the whole matrix, or what stands for it in a wide model."""
    exact: bool = False
    """Whether the sums are measured ones; else they are estimates, from which no bound follows."""
    reach: float = math.inf
    """No example outside memory has a larger |phi_i|^2 in the norm of (G + delta)^-1."""
    peak: float = math.inf
    """Nor has any example at all a larger one than this."""
    smallest: float = 0.0
    """G + delta has no smaller eigenvalue, in the `InformedSpace`."""
    rounding: float = 0.0
    """What rounding can have done to the gradient, in units of the last place."""
    mass: float = 0.0
    """The trace of all that ever went into the curvature or came out of it: what its rounding grows with."""

    value: float = math.nan
    """sum_i l_i(w0), the loss of all rows; not known after some changes."""
    turnover: float = 0.0
    """All that went into the value or came out of it since a pass: what its rounding grows with."""

    def tangent_value(self, step: Tensor) -> float:
        """The loss of all rows at w0 + step, as the sums have it: of numbers it is what it is."""
        if self.curvature is None:
            return math.nan
        return self.value + float(self.gradient @ step) + float(step @ self.curvature.product(step)) / 2

    def tangent_rounding(self, step: Tensor) -> float:
        """What rounding can have done to that."""
        if self.curvature is None:
            return math.nan
        on_the_way = float(self.gradient @ step), float(step @ self.curvature.product(step)) / 2
        return EPSILON * (max(self.turnover, self.value) + sum(abs(part) for part in on_the_way))

    @property
    def finite(self) -> bool:
        """Whether the sums are numbers: counts overflow where a model is far off."""
        tensors = [self.gradient] if self.curvature is None else [self.gradient, *self.curvature.tensors().values()]
        return all(bool(tensor.isfinite().all()) for tensor in tensors)

    def tensors(self) -> Tensors:
        """All of it by name; the curvature's kind is not among it."""
        scalars = torch.tensor([float(getattr(self, name)) for name in SCALARS], dtype=torch.float64)
        return {"w": self.w, "gradient": self.gradient, "figures": scalars} | join_groups(
            {"curvature": {} if self.curvature is None else self.curvature.tensors()}
        )

    @classmethod
    def from_tensors(cls, tensors: Tensors, backend: type[Curvature] | None, predictor: Predictor) -> Anchor:
        """The inverse of `tensors`."""
        curvature = None
        if backend is not None:
            curvature = backend.from_tensors(take_group(tensors, "curvature"), predictor)
            if curvature.product(tensors["w"]).shape != tensors["w"].shape:
                raise ValueError("the curvature does not fit the weights")
        exact, *scalars = tensors["figures"].tolist()
        return cls(tensors["w"], tensors["gradient"], curvature, bool(exact), *scalars)
