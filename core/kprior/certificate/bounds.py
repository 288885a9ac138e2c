"""Bound of the distance to the minimiser of a GLM's objective, from its gradient and Hessian at one point.

The retained objective F is convex, and along any v its curvature changes by at most a factor
e^(+-S), S the largest spread of the output changes phi_i' v (the family's self-concordance, Bach 2010). With the
gradient g and Hessian H of F at w, the retrain w^ = w + v, the decrement n = |g| in H^-1, r = max_i |phi_i| in H^-1:

    |v|_H (1 - e^-S)/S <= n  and  S <= r |v|_H      give    |v|_H <= T = -log(1 - r n)/r  while  r n < 1,
    v = -Hbar^-1 g  with  Hbar >= (1-e^-S)/S H,  S = r T.

So |v| <= T / sqrt(lmin). `anchored_bound.py` derives the rest. Directions that change no prediction (a constant
added to the logits of a softmax) are removed.
"""

import math
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from core.kprior.data.codec import Tensors
from core.kprior.data.examples import Data, Examples
from core.kprior.data.leaf_rows import leaf_rows
from core.kprior.model.families import Categorical
from core.kprior.model.predictor import Predictor
from core.kprior.passes.accumulator import ModelAccumulator
from core.kprior.passes.partitioned import accumulate


@dataclass(frozen=True)
class Bounds:
    """The quantities of the module's formulas."""

    distance: float
    """T / sqrt(lmin), or infinite."""
    widening: float
    """S / (1 - e^-S): the factor by which the mean Hessian towards the retrain can be smaller than H; or infinite."""
    growth: float
    """(e^S - 1) / S: the factor by which it can be larger; or infinite."""


def bounds(decrement: float, reach: float, smallest: float, concordance: float) -> Bounds:
    """T / sqrt(lmin) and S / (1 - e^-S) from n, r, lmin and the family's constant (zero: a quadratic)."""
    product = concordance * reach * decrement
    if not smallest > 0 or not product < 1:
        return Bounds(math.inf, math.inf, math.inf)
    if product < 1e-12:
        return Bounds(decrement * (1 + product) / math.sqrt(smallest), 1 + product, 1 + product)
    S = -math.log1p(-product)
    return Bounds(S / (concordance * reach) / math.sqrt(smallest), S / -math.expm1(-S), math.expm1(S) / S)


class PredictionChange(ModelAccumulator):
    """The largest change of any mean prediction under |v - step| <= radius, in a norm whose inverse is known."""

    kind = "prediction-change"
    options: ClassVar[tuple[str, ...]] = ("radius",)
    tensor_options: ClassVar[tuple[str, ...]] = ("step", "inverse")

    def __init__(
        self, predictor: Predictor, w: Tensor, radius: float, step: Tensor | None = None, inverse: Tensor | None = None
    ) -> None:
        """`inverse` is (P, P). Without it and `step`, |v| is the Euclidean length."""
        super().__init__(predictor, w)
        self.radius, self.step, self.inverse = radius, step, inverse
        self.work = 2.0 * predictor.size if inverse is None else 2.0 * inverse.numel()
        self.largest: float | None = None
        """None without rows."""

    def add(self, chunk: Examples) -> None:
        K = self.predictor.family.outputs
        if self.inverse is None and (rows := leaf_rows(self.predictor, chunk)) is not None:
            f = rows.outputs(self.w.view(K, -1))
            centre = f if self.step is None else f + rows.outputs(self.step.view(K, -1))
            self._consider(f, centre, torch.full_like(f, self.radius * math.sqrt(rows.slots.shape[1] + 1)))
            return
        phi = self.predictor.features(chunk.x)
        f = phi @ self.w.view(K, -1).T
        centre = f if self.step is None else f + phi @ self.step.view(K, -1).T
        if self.inverse is None:
            rho = (self.radius * phi.norm(dim=1))[:, None].expand_as(f)
        else:
            inverse = self.inverse.view(K, phi.shape[1], K, phi.shape[1])
            length = torch.stack([((phi @ inverse[k, :, k]) * phi).sum(1) for k in range(K)], 1)
            rho = self.radius * length.clamp(min=0).sqrt()
        self._consider(f, centre, rho)

    def _consider(self, f: Tensor, centre: Tensor, rho: Tensor) -> None:
        low, high = extreme_means(self.predictor, centre, rho)
        mean = self.predictor.family.mean(f)
        self._raise_to(float(torch.maximum((mean - low).abs(), (high - mean).abs()).max()))

    def _raise_to(self, change: float) -> None:
        self.largest = change if self.largest is None else max(self.largest, change)

    def sums(self) -> Tensors:
        return {} if self.largest is None else {"largest": torch.tensor(self.largest, dtype=torch.float64)}

    def merge(self, sums: Tensors) -> None:
        if "largest" in sums:
            self._raise_to(float(sums["largest"]))


def prediction_bound(
    predictor: Predictor, w: Tensor, step: Tensor, radius: float, factor: Tensor, holdout: Data
) -> float | None:
    """The largest change of any mean on the holdout under |v - step|_H <= radius; None without examples."""
    inverse = torch.cholesky_solve(torch.eye(predictor.size, dtype=w.dtype, device=w.device), factor)
    return accumulate(holdout, PredictionChange(predictor, w, radius, step, inverse)).largest


def prediction_bound_by_eigenvalue(
    predictor: Predictor, w: Tensor, step: Tensor, radius: float, smallest: float, holdout: Data
) -> float | None:
    """As `prediction_bound`, from the smallest eigenvalue of H: larger, but without the inverse of a large matrix."""
    if not smallest > 0:
        return None
    return accumulate(holdout, PredictionChange(predictor, w, radius / math.sqrt(smallest), step)).largest


def prediction_bound_by_length(predictor: Predictor, w: Tensor, distance: float, holdout: Data) -> float | None:
    """The largest change of any mean on the holdout under |v| <= distance; None without examples, or if infinite."""
    if not math.isfinite(distance):
        return None
    return accumulate(holdout, PredictionChange(predictor, w, distance)).largest


def extreme_means(predictor: Predictor, centre: Tensor, rho: Tensor) -> tuple[Tensor, Tensor]:
    """The smallest and largest means if each output k is within rho_k of its centre; means increase with outputs."""
    family = predictor.family
    if not isinstance(family, Categorical):
        return family.mean(centre - rho), family.mean(centre + rho)
    K = family.outputs
    own = torch.eye(K, dtype=torch.bool, device=centre.device)
    low, high = [], []
    for k in range(K):
        up = torch.where(own[k], centre + rho, centre - rho)
        down = torch.where(own[k], centre - rho, centre + rho)
        high.append(family.mean(up)[:, k])
        low.append(family.mean(down)[:, k])
    return torch.stack(low, 1), torch.stack(high, 1)
