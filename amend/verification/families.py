"""The losses of certified models, with the derivatives that a refit needs. y and f are (n, K).

They are written from the formulas in docs/explanation/mathematics.md, independently of the service's engine.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.special import expit, log_expit, log_softmax, softmax

from amend.verification.documents import Document
from amend.verification.findings import Refuted

Array = NDArray[np.float64]
MAX_LOG_RATE = 500.0
"""A Poisson rate of e^500: beyond, derivatives overflow."""


class Family:
    """A convex loss l(y, f). This class covers losses whose second derivative is a number for each output."""

    concordance = 1.0
    """How fast the curvature can change: |log l''(f + u) - log l''(f)| <= concordance * max |u_k|."""
    kinked = False
    """Whether the curvature jumps at some outputs."""

    def loss(self, y: Array, f: Array) -> Array:
        raise NotImplementedError

    def residual(self, y: Array, f: Array) -> Array:
        """dl/df."""
        raise NotImplementedError

    def curvature(self, y: Array, f: Array, margin: float = 0.0) -> Array:
        """The diagonal of the second derivative; its minimum over all outputs within `margin` of f if it can jump."""
        raise NotImplementedError

    def curve(self, y: Array, f: Array, margin: float = 0.0) -> Callable[[Array], Array]:
        """The second derivative as a product with changes of f; see `curvature`."""
        c = self.curvature(y, f, margin)
        return lambda u: c * u

    def admits(self, y: Array) -> bool:
        """Whether these can be targets."""
        return True


class Bernoulli(Family):
    """Logistic regression: log(1 + e^f) - y f."""

    def loss(self, y: Array, f: Array) -> Array:
        return -(y * log_expit(f) + (1 - y) * log_expit(-f)).sum(1)

    def residual(self, y: Array, f: Array) -> Array:
        return expit(f) - y

    def curvature(self, y: Array, f: Array, margin: float = 0.0) -> Array:
        return expit(f) * expit(-f)

    def admits(self, y: Array) -> bool:
        return bool(((y >= 0) & (y <= 1)).all())


class Categorical(Family):
    """Softmax regression: log sum_k e^f_k - <y, f>. Its second derivative is diag(p) - p p'."""

    concordance = 2.0

    def loss(self, y: Array, f: Array) -> Array:
        return -(y * log_softmax(f, axis=1)).sum(1)

    def residual(self, y: Array, f: Array) -> Array:
        return softmax(f, axis=1) - y

    def curvature(self, y: Array, f: Array, margin: float = 0.0) -> Array:
        p = softmax(f, axis=1)
        return p * (1 - p)

    def curve(self, y: Array, f: Array, margin: float = 0.0) -> Callable[[Array], Array]:
        p = softmax(f, axis=1)
        return lambda u: p * (u - (p * u).sum(1, keepdims=True))

    def admits(self, y: Array) -> bool:
        return bool((y >= 0).all() and (abs(y.sum(1) - 1) < 1e-6).all())


class Gaussian(Family):
    """Ridge regression: (f - y)^2 / 2."""

    concordance = 0.0

    def loss(self, y: Array, f: Array) -> Array:
        return 0.5 * ((f - y) ** 2).sum(1)

    def residual(self, y: Array, f: Array) -> Array:
        return f - y

    def curvature(self, y: Array, f: Array, margin: float = 0.0) -> Array:
        return np.ones_like(f)


class Poisson(Family):
    """Poisson regression: e^f - y f."""

    def loss(self, y: Array, f: Array) -> Array:
        return (np.exp(np.minimum(f, MAX_LOG_RATE)) - y * f).sum(1)

    def residual(self, y: Array, f: Array) -> Array:
        return np.exp(np.minimum(f, MAX_LOG_RATE)) - y

    def curvature(self, y: Array, f: Array, margin: float = 0.0) -> Array:
        return np.exp(np.minimum(f, MAX_LOG_RATE))

    def admits(self, y: Array) -> bool:
        return bool((y >= 0).all())


class SquaredHinge(Family):
    """A linear support vector machine: max(0, 1 - s f)^2, s = 1 for class 1 and -1 for class 0."""

    concordance, kinked = 0.0, True

    def loss(self, y: Array, f: Array) -> Array:
        return (np.maximum(1 - (2 * y - 1) * f, 0) ** 2).sum(1)

    def residual(self, y: Array, f: Array) -> Array:
        s = 2 * y - 1
        return -2 * s * np.maximum(1 - s * f, 0)

    def curvature(self, y: Array, f: Array, margin: float = 0.0) -> Array:
        return np.where((2 * y - 1) * f < 1 - margin, 2.0, 0.0)

    def admits(self, y: Array) -> bool:
        return bool(((y == 0) | (y == 1)).all())


class Huber(Family):
    """Robust regression: (f - y)^2 / 2 up to a threshold t, and t (|f - y| - t/2) beyond."""

    concordance, kinked = 0.0, True

    def __init__(self, threshold: float) -> None:
        self.threshold = threshold

    def loss(self, y: Array, f: Array) -> Array:
        off = abs(f - y)
        near = np.minimum(off, self.threshold)
        return (near * (off - near / 2)).sum(1)

    def residual(self, y: Array, f: Array) -> Array:
        return np.clip(f - y, -self.threshold, self.threshold)

    def curvature(self, y: Array, f: Array, margin: float = 0.0) -> Array:
        return np.where(abs(f - y) < self.threshold - margin, 1.0, 0.0)


FAMILIES: dict[str, Callable[[], Family]] = {
    "bernoulli": Bernoulli,
    "categorical": Categorical,
    "gaussian": Gaussian,
    "poisson": Poisson,
    "squared_hinge": SquaredHinge,
}


def family_of(objective: Document) -> Family:
    """The family that an objective names."""
    name = objective.text("family")
    if name == "huber":
        threshold = objective.number("threshold")
        if not threshold > 0:
            raise objective.wrong("threshold", "above 0")
        return Huber(threshold)
    if name not in FAMILIES:
        raise Refuted(f"{objective.where}: unknown family {name!r}. Known: {', '.join((*FAMILIES, 'huber'))}.")
    return FAMILIES[name]()


def one_hot(targets: Array, classes: int, where: str) -> Any:
    """(n,) class numbers -> (n, K)."""
    numbers = targets.astype(np.int64)
    if bool((numbers != targets).any()) or bool((numbers < 0).any()) or bool((numbers >= classes).any()):
        raise Refuted(f"{where}: a target is not a class between 0 and {classes - 1}.")
    return np.eye(classes)[numbers]
