"""Piecewise quadratic losses: squared hinge (a support vector machine, Chapelle 2007) and Huber's.

Both are convex, with a continuous slope and a curvature that jumps at outputs that depend on the target. They have no
log-partition function: instead of the paper's Bregman divergence of A, each row has that of its own loss, l(y, .).
Between its kinks a row is quadratic, and `slack` says how far the next kink is; all bounds depend on it
(`certificate/kinked_bound.py`).
"""

import torch
from torch import Tensor

from .families import Family

KINK_TOLERANCE = 1e-9
"""An output this close to a kink (relative to its position) has no slack: rounding may put it on either side."""


class Kinked(Family):
    """What both losses share: the output itself is the prediction."""

    kinked = True

    def mean(self, f: Tensor) -> Tensor:
        return f

    def variance(self, f: Tensor) -> Tensor:
        return torch.full_like(f, self.steepness)

    def secant(self, f: Tensor, shrink: float) -> Tensor:
        return torch.ones_like(f[:, 0])


class SquaredHinge(Kinked):
    """Two classes, one score: max(0, 1 - s f)^2 with s = 1 for class 1 and -1 for class 0."""

    name = "squared_hinge"
    classifies, steepness = True, 2.0

    def loss(self, y: Tensor, f: Tensor) -> Tensor:
        return ((1 - sign(y) * f).clamp(min=0) ** 2).sum(1)

    def residual(self, y: Tensor, f: Tensor) -> Tensor:
        s = sign(y)
        return -2 * s * (1 - s * f).clamp(min=0)

    def curvature(self, y: Tensor, f: Tensor) -> Tensor:
        return 2.0 * (sign(y) * f < 1 - KINK_TOLERANCE).to(f)

    def slack(self, y: Tensor, f: Tensor) -> Tensor:
        return outside(sign(y) * f, 1.0)

    def magnitude(self, y: Tensor, f: Tensor) -> Tensor:
        return 2 * (1 + f.abs())

    def admits(self, y: Tensor) -> bool:
        return bool(((y == 0) | (y == 1)).all())

    def decide(self, f: Tensor) -> Tensor:
        return (f[:, 0] > 0).long()


class Huber(Kinked):
    """A number: (f - y)^2 / 2 up to a threshold t, and t (|f - y| - t/2) beyond, which limits outliers."""

    name = "huber"
    steepness = 1.0

    def __init__(self, threshold: float) -> None:
        super().__init__()
        if not threshold > 0:
            raise ValueError("The threshold of a Huber loss must be above 0.")
        self.threshold = self.width = threshold

    def loss(self, y: Tensor, f: Tensor) -> Tensor:
        off = (f - y).abs()
        near = off.clamp(max=self.threshold)
        return (near * (off - near / 2)).sum(1)

    def residual(self, y: Tensor, f: Tensor) -> Tensor:
        return (f - y).clamp(-self.threshold, self.threshold)

    def curvature(self, y: Tensor, f: Tensor) -> Tensor:
        return ((f - y).abs() < self.threshold * (1 - KINK_TOLERANCE)).to(f)

    def slack(self, y: Tensor, f: Tensor) -> Tensor:
        return outside((f - y).abs(), self.threshold)

    def magnitude(self, y: Tensor, f: Tensor) -> Tensor:
        return f.abs() + y.abs()


def sign(y: Tensor) -> Tensor:
    """1 for class 1, -1 for class 0."""
    return 2 * y - 1


def outside(value: Tensor, kink: float) -> Tensor:
    """Distance of values from the interval below a kink."""
    return torch.maximum(value - kink, kink * (1 - KINK_TOLERANCE) - value).clamp(min=0)
