"""How far the minimiser of a GLM's objective can be, from its gradient and Hessian at one point.

The retained objective F is convex, and along any v its curvature changes by at most a factor
e^(+-S), S the largest spread of the output changes phi_i' v (the family's self-concordance, Bach 2010). With the
gradient g and Hessian H of F at w, the retrain w^ = w + v, the decrement n = |g| in H^-1, r = max_i |phi_i| in H^-1:

    |v|_H (1 - e^-S)/S <= n  and  S <= r |v|_H      give    |v|_H <= T = -log(1 - r n)/r  while  r n < 1,
    v = -Hbar^-1 g  with  Hbar between (1-e^-S)/S H and (e^S-1)/S H     give    |v - newton|_H <= k n,
    k = S/(1 - e^-S) - 1,  S = r T,  newton = -H^-1 g.

So |v| <= min(T / sqrt(lmin), |newton| + k n / sqrt(lmin), |g| / delta_min), the last where every weight is penalised.
After the Newton step, which the pass has paid for, k n / sqrt(lmin) is left. Directions that change no prediction
(a constant added to a softmax's logits) are taken out.
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

    decrement: float
    radius: float
    """k n: how far, in the norm of H, the retrain can be from the Newton point; infinite if not known."""
    distance: float
    """T / sqrt(lmin), or infinite."""
    left: float = math.inf
    """((e^s - 1)/s - 1) n with s = r n: the gradient after the Newton step, in the norm of H^-1."""


def bounds(decrement: float, reach: float, smallest: float, concordance: float) -> Bounds:
    """T and k n from n, r, lmin and the family's constant (zero: a quadratic, where Newton is exact)."""
    if not smallest > 0:
        return Bounds(decrement, math.inf, math.inf)
    product = concordance * reach * decrement
    if product >= 1:
        return Bounds(decrement, math.inf, math.inf)
    if product < 1e-12:
        near = product * decrement
        return Bounds(decrement, near, decrement * (1 + product) / math.sqrt(smallest), near)
    S = -math.log1p(-product)
    k = S / -math.expm1(-S) - 1
    left = (math.expm1(product) / product - 1) * decrement
    return Bounds(decrement, k * decrement, S / (concordance * reach) / math.sqrt(smallest), left)


def largest_spread(phi: Tensor, inverse: Tensor) -> float:
    """max_i over what changes the family's curvature: |phi_i|^2, or |(e_k - e_l) phi_i|^2 over pairs of classes."""
    K = inverse.shape[0]
    if K == 1:
        return float(((phi @ inverse[0, :, 0]) * phi).sum(1).max())
    own = [((phi @ inverse[k, :, k]) * phi).sum(1) for k in range(K)]
    pairs = [own[k] + own[j] - 2 * ((phi @ inverse[k, :, j]) * phi).sum(1) for k in range(K) for j in range(k)]
    return max(float(pair.max()) for pair in pairs)


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


def gradient_rounding(predictor: Predictor, phi: Tensor, f: Tensor, y: Tensor, w: Tensor) -> float:
    """What rounding can do to a chunk's gradient, in units of the last place: |phi|' (|h| + |y| + h' |phi| |w|).

    h - y cancels where the model is sure, and f = phi' w where large weights meet: both lose digits that the small
    residual does not show.
    """
    family = predictor.family
    lost = family.mean(f).abs() + y.abs() + family.variance(f) * (phi.abs() @ w.view(family.outputs, -1).abs().T)
    return float((lost.T @ phi.abs()).norm())
