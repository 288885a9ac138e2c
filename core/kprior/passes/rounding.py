"""What rounding can have done to a sum over rows."""

from __future__ import annotations

import torch
from torch import Tensor

from core.kprior.model.predictor import Predictor

EPSILON = torch.finfo(torch.float64).eps


def gradient_rounding(predictor: Predictor, phi: Tensor, f: Tensor, y: Tensor, w: Tensor) -> float:
    """What rounding can do to a chunk's gradient, in units of the last place: |phi|' (|h| + |y| + h' |phi| |w|).

    h - y cancels where the model is sure, and f = phi' w where large weights meet: both lose digits that the small
    residual does not show.
    """
    family = predictor.family
    lost = family.mean(f).abs() + y.abs() + family.variance(f) * (phi.abs() @ w.view(family.outputs, -1).abs().T)
    return float((lost.T @ phi.abs()).norm())
