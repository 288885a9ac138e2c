"""What rounding can have done to a sum over rows."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from core.kprior.model.architectures import Glm
from core.kprior.model.predictor import Predictor

EPSILON = torch.finfo(torch.float64).eps


def matrix_rounding(scale: float, size: int) -> float:
    """What rounding can do to a symmetric matrix of trace `scale`, to its factor and its eigenvalues, as a norm."""
    return 4 * math.sqrt(size) * EPSILON * scale


def round_up(value: float) -> float:
    """The next number of ten binary digits: what it was made of cannot be read off the others.

    >>> round_up(1000.1), round_up(0.5), round_up(math.inf)
    (1001.0, 0.5, inf)
    """
    if not math.isfinite(value) or value <= 0:
        return value
    mantissa, exponent = math.frexp(value)
    return math.ldexp(math.ceil(mantissa * 1024) / 1024, exponent)


def feature_blur(
    predictor: Predictor, phi: Tensor, y: Tensor, w: Tensor, weight: Tensor | None = None
) -> tuple[float, float]:
    """What it can do to a gradient and to a Hessian that rows which come or go had other features in another batch.

    b (|h - y| + h' |phi| |w|) and 2 b h' |phi| of each row, b being the blur of its features.
    """
    blur = predictor.body.blur if isinstance(predictor.body, Glm) else 0.0
    if not blur:
        return 0.0, 0.0
    family, length = predictor.family, phi.norm(dim=1)
    f = phi @ w.view(family.outputs, -1).T
    steep = family.variance(f).sum(1)
    gradient = blur * (family.residual(y, f).norm(dim=1) + steep * length * w.norm())
    hessian = 2 * blur * steep * length
    if weight is not None:
        gradient, hessian = gradient * weight, hessian * weight
    return float(gradient.sum()), float(hessian.sum())


def gradient_rounding(
    predictor: Predictor, phi: Tensor, f: Tensor, y: Tensor, w: Tensor, weight: Tensor | None = None
) -> float:
    """What rounding can do to a chunk's gradient, in units of the last place: |phi|' (|h| + |y| + h' |phi| |w|).

    h - y cancels where the model is sure, and f = phi' w where large weights meet: both lose digits that the small
    residual does not show. A weight multiplies it, and costs one more rounding of the residual.
    """
    family = predictor.family
    lost = family.magnitude(y, f) + family.variance(f) * (phi.abs() @ w.view(family.outputs, -1).abs().T)
    if weight is not None:
        lost = (lost + family.residual(y, f).abs()) * weight[:, None]
    return float((lost.T @ phi.abs()).norm())
