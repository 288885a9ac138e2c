"""Bounds on the rounding errors of sums over rows."""

import math

import torch
from torch import Tensor

from core.kprior.model.glm import Glm
from core.kprior.model.predictor import Predictor
from core.kprior.model.tree_leaves import LeafRows

EPSILON = torch.finfo(torch.float64).eps


def matrix_rounding(scale: float, size: int) -> float:
    """Bound on the rounding error (a norm) of a symmetric matrix of trace `scale`, its factor and its eigenvalues."""
    return 4 * math.sqrt(size) * EPSILON * scale


def round_up(value: float) -> float:
    """Round up to ten binary digits, so that the remaining digits do not reveal what the value was computed from.

    >>> round_up(1000.1), round_up(0.5), round_up(-1000.1), round_up(math.inf)
    (1001.0, 0.5, -1000.0, inf)
    """
    if not math.isfinite(value) or value == 0:
        return value
    mantissa, exponent = math.frexp(value)
    return math.ldexp(math.ceil(mantissa * 1024) / 1024, exponent)


def round_down(value: float) -> float:
    """The same, but down.

    >>> round_down(1000.1), round_down(-1000.1)
    (1000.0, -1001.0)
    """
    return -round_up(-value)


def feature_blur(
    predictor: Predictor, phi: Tensor, y: Tensor, w: Tensor, weight: Tensor | None = None
) -> tuple[float, float]:
    """Bound the errors of a gradient and a Hessian if added or removed rows had other features in another batch.

    They are b (|h - y| + h' |phi| |w|) and 2 b h' |phi| for each row, where b is the blur of its features.
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
    """Bound on the rounding error of a chunk's gradient, in ulps: |phi|' (|h| + |y| + h' |phi| |w|).

    h - y cancels where the model is nearly certain, and f = phi' w where large weights cancel: both lose digits, which
    the small residual does not show. The weight of a row multiplies the bound and adds one rounding of the residual.
    """
    family, size = predictor.family, phi.abs()
    lost = family.magnitude(y, f) + family.variance(f) * (size @ w.view(family.outputs, -1).abs().T)
    if weight is not None:
        lost = (lost + family.residual(y, f).abs()) * weight[:, None]
    return float((lost.T @ size).norm())


def leaf_rounding(
    predictor: Predictor, rows: LeafRows, f: Tensor, y: Tensor, w: Tensor, weight: Tensor | None = None
) -> float:
    """`gradient_rounding` for rows of a tree ensemble."""
    family = predictor.family
    lost = family.magnitude(y, f) + family.variance(f) * rows.outputs(w.view(family.outputs, -1).abs())
    if weight is not None:
        lost = (lost + family.residual(y, f).abs()) * weight[:, None]
    return float(rows.pull(lost).norm())
