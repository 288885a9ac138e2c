"""How far the minimiser of a GLM's objective can be, from its gradient and Hessian at one point.

The retained objective F is convex, and along any v its curvature changes by at most a factor
e^(+-S), S the largest spread of the output changes phi_i' v (the family's self-concordance, Bach 2010). With the
gradient g and Hessian H of F at w, the retrain w^ = w + v, the decrement n = |g| in H^-1, r = max_i |phi_i| in H^-1:

    |v|_H (1 - e^-S)/S <= n  and  S <= r |v|_H      give    |v|_H <= T = -log(1 - r n)/r  while  r n < 1,
    v = -Hbar^-1 g  with  Hbar >= (1-e^-S)/S H,  S = r T.

So |v| <= T / sqrt(lmin). `anchored_bound.py` says what else follows. Directions that change no prediction (a constant
added to a softmax's logits) are taken out.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from core.kprior.data.examples import Data
from core.kprior.model.families import Categorical
from core.kprior.model.predictor import Predictor


@dataclass(frozen=True)
class Bounds:
    """The figures of the module's formulas."""

    distance: float
    """T / sqrt(lmin), or infinite."""
    widening: float
    """S / (1 - e^-S): how many times less than H the mean Hessian on the way to the retrain can be; or infinite."""


def bounds(decrement: float, reach: float, smallest: float, concordance: float) -> Bounds:
    """T / sqrt(lmin) and S / (1 - e^-S) from n, r, lmin and the family's constant (zero: a quadratic)."""
    product = concordance * reach * decrement
    if not smallest > 0 or not product < 1:
        return Bounds(math.inf, math.inf)
    if product < 1e-12:
        return Bounds(decrement * (1 + product) / math.sqrt(smallest), 1 + product)
    S = -math.log1p(-product)
    return Bounds(S / (concordance * reach) / math.sqrt(smallest), S / -math.expm1(-S))


def prediction_bound(
    predictor: Predictor, w: Tensor, step: Tensor, radius: float, factor: Tensor, look_at: Data
) -> float | None:
    """The largest change of any mean that |v - step|_H <= radius allows on some examples; None without any."""
    K = predictor.family.outputs
    D = predictor.size // K
    eye = torch.eye(predictor.size, dtype=w.dtype, device=w.device)
    inverse = torch.cholesky_solve(eye, factor).view(K, D, K, D)
    largest = None
    for chunk in look_at:
        if len(chunk) == 0:
            continue
        phi = predictor.features(chunk.x)
        f = phi @ w.view(K, D).T
        centre = f + phi @ step.view(K, D).T
        rho = radius * torch.stack([((phi @ inverse[k, :, k]) * phi).sum(1) for k in range(K)], 1).clamp(min=0).sqrt()
        low, high = extreme_means(predictor, centre, rho)
        mean = predictor.family.mean(f)
        change = float(torch.maximum((mean - low).abs(), (high - mean).abs()).max())
        largest = change if largest is None else max(largest, change)
    return largest


def prediction_bound_by_length(predictor: Predictor, w: Tensor, distance: float, look_at: Data) -> float | None:
    """The largest change of any mean on some examples that |v| <= distance allows; None without any, or if infinite."""
    largest = None
    for chunk in look_at:
        if len(chunk) == 0 or not math.isfinite(distance):
            continue
        phi = predictor.features(chunk.x)
        f = phi @ w.view(predictor.family.outputs, -1).T
        low, high = extreme_means(predictor, f, (distance * phi.norm(dim=1))[:, None].expand_as(f))
        mean = predictor.family.mean(f)
        change = float(torch.maximum(mean - low, high - mean).max())
        largest = change if largest is None else max(largest, change)
    return largest


def extreme_means(predictor: Predictor, centre: Tensor, rho: Tensor) -> tuple[Tensor, Tensor]:
    """The least and largest means when each output k lies within rho_k of its centre; means rise with their output."""
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
