"""The bound of a GLM from sums at its anchor, without a pass over the data.

With d = w - w0, G and g the sums at the anchor w0, R the regularizer and E the examples at hand (the memory, and
what was added in the same job), whose terms are known exactly, the gradient of the retained objective at w is

    grad F(w) = k + rho,     k = g + G d + grad R(w) + sum_E phi (h(f) - h(f0) - h'(f0) (f - f0)),

and rho is what bends between f0 and f in all other examples. Along any step whose outputs spread by S at the most, the
curvature of an example changes by a factor of at most e^(+-S) (the family's self-concordance, Bach 2010). So with H the
Hessian at the anchor, s the `reach` of the examples that are not at hand and Q their part of G:

    S = sqrt(s) |d|_H  gives  |rho| <= e = ((e^S - 1)/S - 1) |d|_Q  in the norm of H^-1,   and   H(w) >= e^-S* H,

S* the larger of S and what is measured on E. `bounds.py` makes of |grad F(w)| in H(w)^-1, and of the largest leverage
of any example, how far the retrain w + v can be in the norm of H(w). Along v curvature changes by e^(+-S') at most:

    |v - p|_H <= (1/a - 1) |k| + e/a,    p = -H^-1 k,    a = e^-S* (1 - e^-S')/S'.

What rho makes of |v| is less than e/sqrt(lmin): rho is a sum over examples, |u' rho| <= e |u|_G for every u, and so its
part of the distance is at most e/sqrt(a) times the largest |H^-1 x|_G, |x| = 1. Where every weight has a penalty of at
least delta that is 1/(2 sqrt(delta)); with weights B that have none, sqrt(1/(4 delta) + delta |H^-1 B|^2).

A pass moves the anchor to w: then d = 0, and k is all of the gradient. Rounding is added to e, and taken from H.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from core.kprior.anchor import Anchor
from core.kprior.certificate.bounds import bounds
from core.kprior.curvature import Full
from core.kprior.model.families import Family
from core.kprior.model.predictor import Predictor
from core.kprior.model.regularizers import L2
from core.kprior.passes.rounding_error import EPSILON, matrix_rounding


@dataclass(frozen=True)
class ExactRows:
    """Examples whose own terms are computed, in place of their part of the sums: features, outputs at the anchor."""

    phi: Tensor
    """(n, D)."""
    f0: Tensor
    """(n, K)."""
    weight: Tensor | None = None
    """(n,) what each counts; None: one."""

    def weighted(self, values: Tensor) -> Tensor:
        """Values of each row (n, K), as often as it counts."""
        return values if self.weight is None else values * self.weight[:, None]

    def outputs(self, w: Tensor) -> Tensor:
        """f at other weights: (n, K)."""
        return self.phi @ w.view(self.f0.shape[1], -1).T

    def tangent(self, family: Family, step: Tensor) -> Tensor:
        """h'(f0) (f - f0), given f - f0: (n, K)."""
        if self.f0.shape[1] == 1:
            return family.variance(self.f0) * step
        parts = [torch.einsum("nkl,nl->nk", hessian, step[rows]) for rows, hessian in family.hessians(self.f0)]
        return torch.cat(parts) if parts else step


def known_gradient(
    predictor: Predictor, anchor: Anchor, regularizer: L2, exact: Sequence[ExactRows], w: Tensor
) -> Tensor:
    """k of the module's formulas: (P,)."""
    assert isinstance(anchor.curvature, Full)
    family = predictor.family
    gradient = anchor.gradient + anchor.curvature.product(w - anchor.w) + regularizer.gradient(w)
    for rows in exact:
        f = rows.outputs(w)
        bend = family.mean(f) - family.mean(rows.f0) - rows.tangent(family, f - rows.f0)
        gradient = gradient + (rows.weighted(bend).T @ rows.phi).reshape(-1)
    return gradient


@dataclass(frozen=True)
class AnchoredBound:
    """What can be said of weights w without a pass over the data."""

    distance: float
    """Covers |w - w_retrain|."""
    gradient_norm: float
    """Covers |grad F(w)|."""
    step: Tensor
    """p: where the Newton step from w leads, relative to it."""
    radius: float
    """|v - p|_H: how far from there the retrain can be, in the norm of the anchor's Hessian."""


def anchored_bound(
    predictor: Predictor, anchor: Anchor, regularizer: L2, exact: Sequence[ExactRows], w: Tensor, factor: Tensor
) -> AnchoredBound:
    """The module's bound; infinite where none can be given. `factor` is the Cholesky factor of H, gauge included."""
    assert isinstance(anchor.curvature, Full)
    family, delta, c = predictor.family, regularizer.delta, predictor.family.self_concordance
    G, d = anchor.curvature.matrix, w - anchor.w
    k = known_gradient(predictor, anchor, regularizer, exact, w)
    curved = max(0.0, float(d @ (G @ d)))
    outside, widest = curved, 0.0
    for rows in exact:
        change = rows.outputs(w) - rows.f0
        outside -= float(rows.weighted(change * rows.tangent(family, change)).sum())
        widest = max(widest, float(family.spread(change).max()) if len(change) else 0.0)
    outside = math.sqrt(max(0.0, outside) + 4 * EPSILON * anchor.mass * float(d @ d))
    whole = math.sqrt(curved + float((delta * d * d).sum()))
    spread = c * math.sqrt(anchor.reach) * whole if anchor.reach > 0 else 0.0
    bent = bend(spread) * outside
    # exact rows are rounded twice: at the anchor and at w
    error = 4 * EPSILON * (2 * anchor.rounding + float(regularizer.magnitude(w).sum()) + anchor.mass * float(d.norm()))
    return bound_from(anchor, regularizer, c, factor, k, max(spread, c * widest), bent=bent, error=error)


def bound_from(
    anchor: Anchor,
    regularizer: L2,
    concordance: float,
    factor: Tensor,
    k: Tensor,
    spread: float,
    *,
    bent: float = 0.0,
    rest: float = 0.0,
    error: float = 0.0,
) -> AnchoredBound:
    """What follows from a gradient that is k but for rho: at most `bent` in the norm of H^-1 and a sum over examples,
    `rest` in that norm, `error` in length. The curvature is the anchor's, but for a factor of e^(+-spread).
    """
    assert isinstance(anchor.curvature, Full)
    G, delta = anchor.curvature.matrix, regularizer.delta
    step = -torch.cholesky_solve(k[:, None], factor)[:, 0]
    blur = hessian_blur(anchor, regularizer)
    sizes = (bent, rest, error, spread)
    if not anchor.exact or not blur < 0.5 or not all(map(math.isfinite, sizes)) or not bool(k.isfinite().all()):
        return AnchoredBound(math.inf, math.inf, step, math.inf)
    shrink = spread - math.log1p(-blur)
    plain = rest + error / math.sqrt(anchor.smallest)
    size = math.sqrt(max(0.0, -float(k @ step)))
    ridge = float(delta.min())
    grown, shrunk = math.exp(min(shrink, 100.0) / 2), math.exp(-shrink)
    smallest = shrunk * anchor.smallest + (1 - shrunk) * ridge
    found = bounds(grown * (size + plain + bent), math.sqrt(anchor.peak) * grown, smallest, concordance)
    norm = float(k.norm()) + error + (bent + rest) * math.sqrt(largest_eigenvalue(G) + float(delta.max()))
    distance, radius = found.distance, math.inf
    if math.isfinite(found.distance):
        narrow = shrunk / found.widening
        tight = (1 / narrow - 1) * size + plain / narrow
        radius = tight + bent / narrow
        condition = float(G.diagonal().sum() + delta.sum()) / anchor.smallest
        length = float(step.norm()) * (1 + EPSILON * condition)
        curved = bent / math.sqrt(narrow) * longest_response(delta, factor, anchor.smallest, narrow)
        distance = min(distance, length + tight / math.sqrt(anchor.smallest) + curved)
    if ridge > 0:
        distance = min(distance, norm / ridge)
    return AnchoredBound(distance, norm, step, radius)


def hessian_blur(anchor: Anchor, regularizer: L2) -> float:
    """By which share of itself, at the most, rounding can have changed the anchor's Hessian."""
    scale = anchor.mass + float(regularizer.delta.sum())
    return matrix_rounding(scale, len(anchor.w)) / anchor.smallest if anchor.smallest > 0 else math.inf


def longest_response(delta: Tensor, factor: Tensor, smallest: float, narrow: float) -> float:
    """The largest |H^-1 x|_G, |x| = 1, for any Hessian of at least `narrow` times the anchor's."""
    plain = 1 / math.sqrt(narrow * smallest)
    free = torch.nonzero(delta == 0)[:, 0]
    if len(free) == len(delta):
        return plain
    ridge = float(delta[delta > 0].min())
    unit = torch.zeros(len(delta), len(free), dtype=delta.dtype, device=delta.device)
    unit[free, torch.arange(len(free), device=delta.device)] = 1
    white = torch.linalg.solve_triangular(factor, unit, upper=False)
    loose = float((white**2).sum()) / (narrow * narrow * smallest)
    return min(plain, math.sqrt(1 / (4 * ridge) + ridge * loose))


def bend(spread: float) -> float:
    """(e^S - 1)/S - 1."""
    if spread > 100:
        return math.inf
    return spread / 2 if spread < 1e-6 else math.expm1(spread) / spread - 1


def largest_eigenvalue(G: Tensor) -> float:
    """No less than the largest eigenvalue of a positive semi-definite matrix, from its rows."""
    return min(float(G.norm()), float(G.abs().sum(1).max()), float(G.diagonal().sum().clamp(min=0)))
