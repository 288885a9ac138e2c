"""The anchor of a GLM: weights w0 at which a pass measured all data in force, and the sums at these weights.

Examples are added to the sums and subtracted from them *at w0*, so that nothing of a removed example remains but
rounding errors, for which the anchor carries a bound. The weights w of the state may differ from w0;
`certificate/anchored_bound.py` derives what the sums imply at w.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from core.kprior.curvature import Curvature, Full
from core.kprior.data.codec import Tensors, join_groups, take_group
from core.kprior.model.gauge import fill_gauge, shift_directions
from core.kprior.model.predictor import Predictor
from core.kprior.model.regularizers import L2
from core.kprior.passes.detail import Detail
from core.kprior.passes.rounding_error import EPSILON

SCALARS = ("exact", "reach", "peak", "smallest", "rounding", "mass", "value", "turnover")


@dataclass(frozen=True)
class Anchor:
    """Sums over the data in force at the weights w0, without the regularizer."""

    w: Tensor
    """(P,) w0."""
    gradient: Tensor
    """(P,) sum_i phi_i (h(f_i) - y_i)."""
    curvature: Curvature | None
    """G = sum_i phi_i h'(f_i) phi_i': the whole matrix, or an approximation for a wide model."""
    exact: bool = False
    """Whether the sums were measured; otherwise they are estimates, from which no bound follows."""
    reach: float = math.inf
    """Upper bound of |phi_i|^2 in the norm of (G + delta)^-1, for examples outside the memory."""
    peak: float = math.inf
    """The same for all examples."""
    smallest: float = 0.0
    """Lower bound of the eigenvalues of G + delta in the `InformedSpace`."""
    rounding: float = 0.0
    """Bound of the rounding error of the gradient, in units of the last place."""
    mass: float = 0.0
    """The trace of everything that was ever added to the curvature or subtracted from it; its rounding error grows with
    it."""

    value: float = math.nan
    """sum_i l_i(w0), the loss of all rows; unknown after some changes."""
    turnover: float = 0.0
    """Everything that was added to the value or subtracted from it since a pass; its rounding error grows with it."""

    detail: Detail | None = None
    """Third derivatives and feature ranges of all rows, if a pass has measured them."""

    def tangent_value(self, step: Tensor) -> float:
        """The loss of all rows at w0 + step to second order, which is exact for numbers."""
        if self.curvature is None:
            return math.nan
        return self.value + float(self.gradient @ step) + float(step @ self.curvature.product(step)) / 2

    def tangent_rounding(self, step: Tensor) -> float:
        """Bound of the rounding error of `tangent_value`."""
        if self.curvature is None:
            return math.nan
        on_the_way = float(self.gradient @ step), float(step @ self.curvature.product(step)) / 2
        return EPSILON * (max(self.turnover, self.value) + sum(abs(part) for part in on_the_way))

    @property
    def finite(self) -> bool:
        """Whether the sums are finite; counts overflow if a model is far off."""
        tensors = [self.gradient] if self.curvature is None else [self.gradient, *self.curvature.tensors().values()]
        return all(bool(tensor.isfinite().all()) for tensor in tensors)

    def tensors(self) -> Tensors:
        """All parts by name, without the kind of the curvature."""
        scalars = torch.tensor([float(getattr(self, name)) for name in SCALARS], dtype=torch.float64)
        groups = {
            "curvature": {} if self.curvature is None else self.curvature.tensors(),
            "detail": {} if self.detail is None else self.detail.tensors(),
        }
        return {"w": self.w, "gradient": self.gradient, "figures": scalars} | join_groups(groups)

    @classmethod
    def from_tensors(cls, tensors: Tensors, backend: type[Curvature] | None, predictor: Predictor) -> Anchor:
        """The inverse of `tensors`."""
        curvature = None
        if backend is not None:
            curvature = backend.from_tensors(take_group(tensors, "curvature"), predictor)
            if curvature.product(tensors["w"]).shape != tensors["w"].shape:
                raise ValueError("The curvature does not fit the weights.")
        if tensors["figures"].shape != (len(SCALARS),):
            raise ValueError(f"The anchor has {len(tensors['figures'])} figures, not {len(SCALARS)}.")
        exact, *scalars = tensors["figures"].tolist()
        detail = Detail.from_tensors(found) if (found := take_group(tensors, "detail")) else None
        if detail is not None and detail.low.shape != tensors["w"].shape:
            raise ValueError("The third derivatives do not fit the weights.")
        anchor = cls(tensors["w"], tensors["gradient"], curvature, bool(exact), *scalars)
        return replace(anchor, detail=detail)


def hessian_of(predictor: Predictor, regularizer: L2, anchor: Anchor) -> Tensor:
    """G + delta at the anchor, with the flat directions of a softmax filled in."""
    assert isinstance(anchor.curvature, Full)
    H = anchor.curvature.matrix.clone()
    H.diagonal().add_(regularizer.delta)
    return fill_gauge(H, shift_directions(predictor, regularizer.delta))
