"""Families: the loss of an output f, and the derivatives that K-priors need.

    l(y, f) = A(f) - <y, f>,   h = grad A (the mean),   h' = hess A          (paper, Eqs. 4 and 5)

Losses are shifted by a constant in y where that keeps them non-negative. All are stable for extreme f.

Two losses are piecewise quadratic rather than exponential families (`kinked_losses.py`): their slope and curvature
depend on the target. `residual` and `curvature`, which all families have, take the targets into account.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Iterator

import torch
from torch import Tensor
from torch.nn import functional

RAREST = 1e-3
"""Smallest mean count that a network is initialised with."""
HESSIAN_NUMBERS = 2**24


class Family(ABC):
    """One exponential family with K natural parameters per example (`outputs`)."""

    name: str
    self_concordance: float = 1.0
    """c in |A'''[u,u,v]| <= c * spread(v) * A''[u,u]: how fast curvature can change along v (Bach 2010)."""
    classifies = False
    """Whether the target is a class."""
    coupled = False
    """Whether only differences of outputs matter, as in a softmax; otherwise each output has a loss of its own."""
    kinked = False
    """Whether the loss is piecewise quadratic: its curvature jumps, and `slack` bounds where."""
    width = 1.0
    """For a kinked loss: two outputs this far apart may have a kink between them."""
    steepness = math.nan
    """The largest slope of h; NaN if it is unbounded."""

    def __init__(self, outputs: int = 1) -> None:
        self.outputs = outputs

    @abstractmethod
    def loss(self, y: Tensor, f: Tensor) -> Tensor:
        """l(y, f) for each row: (n, K), (n, K) -> (n,). y may be soft."""

    def excess(self, y: Tensor, f: Tensor) -> Tensor:
        """The loss minus its minimum for a hard y, so that rows can be compared: (n,)."""
        return self.loss(y, f)

    @abstractmethod
    def mean(self, f: Tensor) -> Tensor:
        """h(f): (n, K) -> (n, K)."""

    @abstractmethod
    def variance(self, f: Tensor) -> Tensor:
        """The diagonal of h'(f): (n, K) -> (n, K). For a kinked loss, its maximum over all targets."""

    def residual(self, y: Tensor, f: Tensor) -> Tensor:
        """dl/df: (n, K), (n, K) -> (n, K)."""
        return self.mean(f) - y

    def terms(self, y: Tensor, f: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Mean, residual and loss of each row: (n, K), (n, K) -> (n, K), (n, K), (n,).

        They may differ from those of `mean`, `residual` and `loss` by rounding errors.
        """
        return self.mean(f), self.residual(y, f), self.loss(y, f)

    def curvature(self, y: Tensor, f: Tensor) -> Tensor:
        """The diagonal of d^2 l/df^2: (n, K), (n, K) -> (n, K)."""
        return self.variance(f)

    def slope_of_variance(self, f: Tensor) -> Tensor | None:
        """The third derivative of A: (n, K) -> (n, K); None for a family that makes no promise about the fourth one.

        The promise is that the fourth derivative is at most c^2 times the variance, c the self-concordance.
        """
        return None

    def slack(self, y: Tensor, f: Tensor) -> Tensor:
        """How far an output can move before the curvature of a kinked loss changes: (n, K), (n, K) -> (n, K)."""
        return torch.full_like(f, torch.inf)

    def magnitude(self, y: Tensor, f: Tensor) -> Tensor:
        """Size of the terms that cancel in a residual, which bounds its rounding error: (n, K), (n, K) -> (n, K)."""
        return self.mean(f).abs() + y.abs()

    def hessian(self, f: Tensor) -> Tensor:
        """h'(f) as matrices: (n, K) -> (n, K, K)."""
        return torch.diag_embed(self.variance(f))

    def hessians(self, f: Tensor) -> Iterator[tuple[slice, Tensor]]:
        """h'(f) in slices of rows that fit in memory: with a thousand classes, a row has a million numbers."""
        step = max(1, HESSIAN_NUMBERS // self.outputs**2)
        for start in range(0, len(f), step):
            rows = slice(start, start + step)
            yield rows, self.hessian(f[rows])

    def summed_hessian(self, f: Tensor, weight: Tensor) -> Tensor:
        """sum_i v_i h'(f_i): (n, K), (n,) -> (K, K)."""
        return torch.diag((self.variance(f) * weight[:, None]).sum(0))

    def hessian_root(self, f: Tensor) -> Tensor:
        """B with B B' = h'(f): (n, K) -> (n, K, K)."""
        return torch.diag_embed(self.variance(f).sqrt())

    def admits(self, y: Tensor) -> bool:
        """Whether targets (n, K), soft ones included, are means of this family or limits of means."""
        return bool(y.isfinite().all())

    def spread(self, f: Tensor) -> Tensor:
        """The size of a change of outputs that matters to the curvature: (n, K) -> (n,)."""
        return f.abs().amax(1)

    def initial_outputs(self, mean: Tensor, deviation: Tensor) -> tuple[Tensor, Tensor]:
        """Initial outputs of a network and their unit, given mean and deviation of its targets: (K,) each."""
        return torch.zeros_like(mean), torch.ones_like(mean)

    def decide(self, f: Tensor) -> Tensor:
        """The prediction as one number: the class if there are classes, else the mean. (n, K) -> (n,)."""
        return self.mean(f)[:, 0]

    def secant(self, f: Tensor, shrink: float) -> Tensor:
        """Mean slope of h between f and shrink * f, along the line that joins them: (n, K) -> (n,).

        h(f) - h(s f) ~ secant * (1 - s) f. At f = 0 it is the mean curvature itself.
        """
        centred = f - f.mean(1, keepdim=True) if self.coupled else f
        square = (centred**2).sum(1)
        rise = ((self.mean(f) - self.mean(shrink * f)) * centred).sum(1)
        flat = square < 1e-8
        slope = rise / ((1 - shrink) * torch.where(flat, torch.ones_like(square), square))
        # one direction of the K logits of a softmax is flat: the other K - 1 share the trace
        return torch.where(flat, self.variance(f).sum(1) / (self.outputs - self.coupled), slope)


class Bernoulli(Family):
    """Two classes, one logit: A(f) = log(1 + e^f)."""

    name = "bernoulli"
    classifies, steepness = True, 0.25

    def loss(self, y: Tensor, f: Tensor) -> Tensor:
        # y softplus(-f) + (1 - y) softplus(f) avoids the cancellation in softplus(f) - y f
        return -(y * functional.logsigmoid(f) + (1 - y) * functional.logsigmoid(-f)).sum(1)

    def mean(self, f: Tensor) -> Tensor:
        return torch.sigmoid(f)

    def variance(self, f: Tensor) -> Tensor:
        return torch.sigmoid(f) * torch.sigmoid(-f)

    def slope_of_variance(self, f: Tensor) -> Tensor | None:
        # the fourth derivative is v (1 - 6 v), where the variance v is between 0 and 1/4
        return self.variance(f) * (torch.sigmoid(-f) - torch.sigmoid(f))

    def admits(self, y: Tensor) -> bool:
        return bool(((y >= 0) & (y <= 1)).all())

    def decide(self, f: Tensor) -> Tensor:
        return (f[:, 0] > 0).long()


class Labels(Bernoulli):
    """Any of K labels, one logit for each: A(f) = sum_k log(1 + e^f_k)."""

    classifies = False

    def decide(self, f: Tensor) -> Tensor:
        raise TypeError("A set of labels is not one number.")


class Categorical(Family):
    """K classes, K logits: A(f) = log sum_k e^{f_k}. Adding a constant to all logits changes nothing."""

    name = "categorical"
    classifies, coupled, steepness = True, True, 0.5

    def __init__(self, outputs: int) -> None:
        if outputs < 2:
            raise ValueError("A categorical family needs at least two classes.")
        super().__init__(outputs)

    def loss(self, y: Tensor, f: Tensor) -> Tensor:
        return -(y * torch.log_softmax(f, 1)).sum(1)

    def mean(self, f: Tensor) -> Tensor:
        return torch.softmax(f, 1)

    def terms(self, y: Tensor, f: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        # torch's softmax along the first dimension takes a tenth of the time of one along a short last dimension
        log_p = torch.log_softmax(f.T.contiguous(), 0)
        target = y.T
        loss = -(target * log_p).sum(0)
        p = log_p.exp_()
        return p.T, (p - target).T, loss

    def variance(self, f: Tensor) -> Tensor:
        log_p = torch.log_softmax(f, 1)
        return log_p.exp() * -torch.expm1(log_p)

    def curvature(self, y: Tensor, f: Tensor) -> Tensor:
        log_p = torch.log_softmax(f.T.contiguous(), 0)  # as in `terms`
        return (log_p.exp() * -torch.expm1(log_p)).T

    def hessian(self, f: Tensor) -> Tensor:
        p = self.mean(f)
        off = -p[:, :, None] * p[:, None, :]
        return off - torch.diag_embed(off.diagonal(dim1=1, dim2=2)) + torch.diag_embed(self.variance(f))

    def summed_hessian(self, f: Tensor, weight: Tensor) -> Tensor:
        p = self.mean(f)
        scaled = p * weight[:, None]
        return torch.diag(scaled.sum(0)) - scaled.T @ p

    def hessian_root(self, f: Tensor) -> Tensor:
        # (diag(r) - p r')(diag(r) - p r')' = diag(p) - p p' for r = sqrt(p), as the p sum to one
        p = self.mean(f)
        r = p.sqrt()
        return torch.diag_embed(r) - p[:, :, None] * r[:, None, :]

    def admits(self, y: Tensor) -> bool:
        return bool(((y >= 0) & (y <= 1)).all()) and bool(((y.sum(1) - 1).abs() < 1e-3).all())

    def spread(self, f: Tensor) -> Tensor:
        return f.amax(1) - f.amin(1)

    def decide(self, f: Tensor) -> Tensor:
        return f.argmax(1)


class Gaussian(Family):
    """A number with unit variance: A(f) = f^2 / 2."""

    name = "gaussian"
    self_concordance = 0.0
    steepness = 1.0

    def loss(self, y: Tensor, f: Tensor) -> Tensor:
        return 0.5 * ((f - y) ** 2).sum(1)

    def mean(self, f: Tensor) -> Tensor:
        return f

    def variance(self, f: Tensor) -> Tensor:
        return torch.ones_like(f)

    def initial_outputs(self, mean: Tensor, deviation: Tensor) -> tuple[Tensor, Tensor]:
        return mean, deviation.clamp(min=1)  # Adam's steps are too large for a smaller unit


class LinearProbability(Gaussian):
    """Two classes, 0 and 1, fitted as numbers: a ridge classifier, whose means can be below 0 or above 1."""

    classifies = True

    def admits(self, y: Tensor) -> bool:
        return bool(((y >= 0) & (y <= 1)).all())

    def decide(self, f: Tensor) -> Tensor:
        return (f[:, 0] > 0.5).long()


class Poisson(Family):
    """A count with log rate f: A(f) = e^f."""

    name = "poisson"

    def loss(self, y: Tensor, f: Tensor) -> Tensor:
        return (f.exp() - y * f).sum(1)

    def excess(self, y: Tensor, f: Tensor) -> Tensor:
        """Half the deviance."""
        return self.loss(y, f) - (y - torch.xlogy(y, y)).sum(1)

    def mean(self, f: Tensor) -> Tensor:
        return f.exp()

    def variance(self, f: Tensor) -> Tensor:
        return f.exp()

    def slope_of_variance(self, f: Tensor) -> Tensor | None:
        return f.exp()

    def initial_outputs(self, mean: Tensor, deviation: Tensor) -> tuple[Tensor, Tensor]:
        return mean.clamp(min=RAREST).log(), torch.ones_like(mean)

    def admits(self, y: Tensor) -> bool:
        return bool((y >= 0).all()) and bool(y.isfinite().all())


def classes_of(y: Tensor) -> Tensor:
    """(n, K) targets that are classes -> (n,) class numbers."""
    return (y[:, 0] > 0.5).long() if y.shape[1] == 1 else y.argmax(1)
