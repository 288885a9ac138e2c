"""The bound of a GLM from sums at its anchor, without a pass over the data.

With d = w - w0, G and g the sums at the anchor w0, R the regularizer and E the examples at hand (the memory, and
what was added in the same job), whose terms are known exactly, the gradient of the retained objective at w is

    grad F(w) = k + rho,     k = g + G d + grad R(w) + sum_E phi (h(f) - h(f0) - h'(f0) (f - f0)),

and rho is the non-linear part of the gradients of all other examples between f0 and f. Along any step whose outputs
spread by at most S, the curvature of an example changes by a factor of at most e^(+-S) (the family's self-concordance,
Bach 2010). So with H the Hessian at the anchor, s the `reach` of the examples that are not at hand and Q their part of
G:

    S = sqrt(s) |d|_H  gives  |rho| <= e = ((e^S - 1)/S - 1) |d|_Q  in the norm of H^-1,   and   H(w) >= e^-S* H,

S* the larger of S and the spread that is measured on E. From |grad F(w)| in H(w)^-1 and the largest leverage of any
example, `bounds.py` derives how far the retrain w + v can be in the norm of H(w). Along v, curvature changes by at most
e^(+-S'):

    |v - p|_H <= (1/a - 1) |k| + e/a,    p = -H^-1 k,    a = e^-S* (1 - e^-S')/S'.

The contribution of rho to |v| is less than e/sqrt(lmin): rho is a sum over examples, |u' rho| <= e |u|_G for every u,
and so its part of the distance is at most e/sqrt(a) times the largest |H^-1 x|_G, |x| = 1. Where every weight has a
penalty of at least delta that is 1/(2 sqrt(delta)); with weights B that have none, sqrt(1/(4 delta) + delta |H^-1
B|^2).

If the spectrum of G is known, so is sigma, the largest |H^-1 x|_G, |x| = 1, for the H of the anchor. It is small where
no eigenvalue of G is near delta, even if some are zero. The retrain satisfies (Gbar + delta) v = -(k + rho) for a Gbar
between a G and A G, A = e^S* (e^S' - 1)/S'. So H v = -(k + rho) + (G - Gbar) v, and with q = max(1 - a, A - 1)

    |x' H^-1 rho| <= e |H^-1 x|_G,    |x' H^-1 (G - Gbar) v| <= q |H^-1 x|_G |v|_G,    |v|_G <= (|k| + e)/a,
    |v| <= |p| + sigma (e + q (|k| + e)/a).

If the anchor has its `detail`, k includes the second-order part T[d, d]/2 of the other examples. The fourth derivative
of A is at most c^2 times its second, so that what is left of an example whose output moves by t is at most

    int_0^t (t - s)^2/2 h'(f0) c^2 e^(c s) ds = h'(f0) t psi(c t),    psi(S) = (e^S - 1)/S - 1 - S/2,

and e = psi(S) |d|_Q. S is then also limited by the ranges of the features.

A pass moves the anchor to w; then d = 0, and k is the whole gradient. Rounding errors are added to e and subtracted
from H.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from core.kprior.certificate.bounds import bounds
from core.kprior.certificate.exact_rows import ExactRows
from core.kprior.curvature import MAX_FULL_SIZE, Full, solve_factored
from core.kprior.model.families import Family
from core.kprior.model.gauge import fill_gauge, shift_directions
from core.kprior.model.predictor import Predictor
from core.kprior.model.regularizers import L2
from core.kprior.passes.leverage import largest_ratio
from core.kprior.passes.rounding_error import EPSILON, matrix_rounding
from core.kprior.state.anchor import Anchor
from core.kprior.state.informed_space import InformedSpace
from core.kprior.state.measurement import smallest_eigenvalue

MAX_WEIGHTS_FOR_SPECTRUM = 300
"""Number of weights up to which the spectrum of G is worth its cost."""


def known_gradient(
    predictor: Predictor, anchor: Anchor, regularizer: L2, exact: Sequence[ExactRows], w: Tensor
) -> Tensor:
    """k of the module's formulas: (P,)."""
    assert isinstance(anchor.curvature, Full)
    family = predictor.family
    gradient = anchor.gradient + anchor.curvature.product(w - anchor.w) + regularizer.gradient(w)
    detailed = anchor.detail is not None
    if anchor.detail is not None:
        gradient = gradient + anchor.detail.bend(w - anchor.w)
    for rows in exact:
        bend = rows.bend(family, rows.outputs(w), detailed)
        gradient = gradient + (rows.weighted(bend).T @ rows.phi).reshape(-1)
    return gradient


def gradient_error(anchor: Anchor, regularizer: L2, w: Tensor) -> float:
    """Bound of the rounding error of k. Exact rows are rounded twice, at the anchor and at w."""
    d = w - anchor.w
    bent = 0.0 if anchor.detail is None else anchor.detail.bend_error(d)
    terms = 2 * anchor.rounding + float(regularizer.magnitude(w).sum()) + anchor.mass * float(d.norm())
    return 4 * EPSILON * terms + bent


@dataclass(frozen=True)
class AnchoredBound:
    """Bounds for weights w without a pass over the data."""

    distance: float
    """Upper bound of |w - w_retrain|."""
    gradient_norm: float
    """Upper bound of |grad F(w)|."""
    step: Tensor
    """p: the Newton step from w."""
    radius: float
    """Upper bound of |v - p|_H: the distance of the retrain from there, in the norm of a Hessian."""
    factor: Tensor
    """The Cholesky factor of that Hessian."""


@dataclass(frozen=True)
class Movement:
    """The change from the anchor to w, as known from the sums and the rows at hand."""

    k: Tensor
    """The known part of the gradient."""
    spread: float
    """Upper bound of the change of the outputs of all other rows."""
    widest: float
    """Upper bound of the change of the outputs of the rows at hand."""
    uncertainty: GradientUncertainty
    """Limits of the unknown part of the gradient."""

    @classmethod
    def of(
        cls, predictor: Predictor, anchor: Anchor, regularizer: L2, exact: Sequence[ExactRows], w: Tensor, limit: float
    ) -> Movement:
        assert isinstance(anchor.curvature, Full)
        family, c, d = predictor.family, predictor.family.self_concordance, w - anchor.w
        curved = max(0.0, float(d @ anchor.curvature.product(d)))
        outside, widest = curved, 0.0
        for rows in exact:
            change = rows.outputs(w) - rows.f0
            outside -= float(rows.weighted(change * rows.tangent(family, change)).sum())
            widest = max(widest, float(family.spread(change).max()) if len(change) else 0.0)
        outside = math.sqrt(max(0.0, outside) + 4 * EPSILON * anchor.mass * float(d @ d))
        whole = math.sqrt(curved + float((regularizer.delta * d * d).sum()))
        spread = min(limit, c * math.sqrt(anchor.reach) * whole) if anchor.reach > 0 else 0.0
        if anchor.detail is not None:
            spread = min(spread, c * anchor.detail.spread(d))
        bent = (bend(spread) if anchor.detail is None else bend_beyond_second_order(spread)) * outside
        k, error = known_gradient(predictor, anchor, regularizer, exact, w), gradient_error(anchor, regularizer, w)
        return cls(k, spread, c * widest, GradientUncertainty(bent=bent, error=error))


def anchored_bound(
    predictor: Predictor,
    anchor: Anchor,
    regularizer: L2,
    exact: Sequence[ExactRows],
    w: Tensor,
    factor: Tensor,
    limit: float = math.inf,
) -> AnchoredBound:
    """The bound of the module's docstring; infinite if there is none.

    `factor` is the Cholesky factor of H, gauge included; `limit` is another upper bound of the spread S.
    """
    movement = Movement.of(predictor, anchor, regularizer, exact, w, limit)
    family, spread = predictor.family, max(movement.spread, movement.widest)
    return bound_from(anchor, regularizer, family, factor, movement.k, spread, movement.uncertainty)


def closer_bound(
    predictor: Predictor,
    anchor: Anchor,
    regularizer: L2,
    exact: Sequence[ExactRows],
    w: Tensor,
    factor: Tensor,
    limit: float,
) -> AnchoredBound | None:
    """The same if rows at hand have moved further than other rows can have, with the curvature of these rows at w.

    H is then the Hessian at w, up to a factor of e^(+-S) in the other rows, and |rho| in the norm of its inverse is as
    above, because Q is a part of it as well. None if nothing is gained.
    """
    assert isinstance(anchor.curvature, Full)
    movement, family = Movement.of(predictor, anchor, regularizer, exact, w, limit), predictor.family
    if not movement.spread < movement.widest:
        return None
    G, mass = anchor.curvature.matrix.clone(), anchor.mass
    for rows in exact:
        now, before = (rows.hessian(family, f) for f in (rows.outputs(w), rows.f0))
        G += now - before
        mass += float(now.diagonal().sum() + before.diagonal().sum())
    shifts = shift_directions(predictor, regularizer.delta)
    H = fill_gauge(G + torch.diag(regularizer.delta), shifts)
    close, failed = torch.linalg.cholesky_ex(H)
    if int(failed):
        return None
    eye = torch.eye(len(H), dtype=H.dtype, device=H.device)
    ratio = largest_ratio(factor @ factor.T, torch.linalg.solve_triangular(close, eye, upper=False))
    moved = replace(anchor, curvature=Full(G), mass=mass, peak=anchor.peak * ratio * (1 + 1e-6))
    moved = replace(moved, smallest=smallest_eigenvalue(H, InformedSpace.of(moved, regularizer.delta, family)))
    return bound_from(moved, regularizer, family, close, movement.k, movement.spread, movement.uncertainty)


@dataclass(frozen=True)
class GradientUncertainty:
    """Limits of rho, the unknown part of a gradient: the sum of three vectors."""

    bent: float = 0.0
    """Limit of a sum over examples, in the norm of H^-1."""
    rest: float = 0.0
    """Limit of any other vector, in the norm of H^-1."""
    error: float = 0.0
    """Limit of rounding errors, in Euclidean length."""


def bound_from(
    anchor: Anchor,
    regularizer: L2,
    family: Family,
    factor: Tensor,
    k: Tensor,
    spread: float,
    uncertainty: GradientUncertainty,
) -> AnchoredBound:
    """The bound that follows from a gradient k + rho, where rho is limited by the uncertainty.

    The curvature is the anchor's up to a factor of e^(+-spread).
    """
    bent, rest, error = uncertainty.bent, uncertainty.rest, uncertainty.error
    assert isinstance(anchor.curvature, Full)
    G, delta = anchor.curvature.matrix, regularizer.delta
    step = -solve_factored(factor, k)
    blur = hessian_blur(anchor, regularizer)
    sizes = (bent, rest, error, spread)
    if not anchor.exact or not blur < 0.5 or not all(map(math.isfinite, sizes)) or not bool(k.isfinite().all()):
        return AnchoredBound(math.inf, math.inf, step, math.inf, factor)
    shrink = spread - math.log1p(-blur)
    # In directions that no example determines, the step is exact up to rounding.
    space = InformedSpace.of(anchor, delta, family)
    apart, least = space.apart(step), min(anchor.smallest, space.least_penalty(delta))
    plain = rest + error / math.sqrt(least)
    size = math.sqrt(max(0.0, -float(k @ step)))
    ridge = float(delta.min())
    grown, shrunk = math.exp(min(shrink, 100.0) / 2), math.exp(-shrink)
    smallest = shrunk * anchor.smallest + (1 - shrunk) * ridge
    found = bounds(grown * (size + plain + bent), math.sqrt(anchor.peak) * grown, smallest, family.self_concordance)
    norm = float(k.norm()) + error + (bent + rest) * math.sqrt(largest_eigenvalue(G) + float(delta.max()))
    distance, radius = math.hypot(found.distance, apart + error / least), math.inf
    if math.isfinite(found.distance):
        narrow = shrunk / found.widening
        tight = (1 / narrow - 1) * size + rest / narrow
        radius = tight + (plain - rest + bent) / narrow
        condition = float(G.diagonal().sum() + delta.sum()) / least
        length = float(step.norm()) * (1 + EPSILON * condition)
        curved = bent / math.sqrt(narrow) * longest_response(delta, factor, anchor.smallest, narrow)
        distance = min(distance, length + tight / math.sqrt(anchor.smallest) + error / (narrow * least) + curved)
        if len(k) <= MAX_WEIGHTS_FOR_SPECTRUM and bent > 0:
            # with E the rounding error of G, |E| <= blur lmin: |H^-1 E v| <= blur |v|, |H^-1 x|_E^2 <= blur/lmin
            sigma = math.hypot(largest_response(G, factor), math.sqrt(blur / anchor.smallest)) / (1 - blur) ** 2
            change = max(1 - narrow, math.exp(shrink) * found.growth - 1)
            response = sigma * (bent + change * (size + plain + bent) / narrow)
            direct = length + response + rest / math.sqrt(anchor.smallest) + error / least
            distance = min(distance, direct / (1 - blur))
    if ridge > 0:
        distance = min(distance, norm / ridge)
    return AnchoredBound(distance, norm, step, radius, factor)


def hessian_blur(anchor: Anchor, regularizer: L2) -> float:
    """Upper bound of the relative rounding error of the anchor's Hessian."""
    scale = anchor.mass + float(regularizer.delta.sum())
    return matrix_rounding(scale, len(anchor.w)) / anchor.smallest if anchor.smallest > 0 else math.inf


def largest_response(G: Tensor, factor: Tensor) -> float:
    """The largest |H^-1 x|_G, |x| = 1, where `factor` is the Cholesky factor of H."""
    half = torch.cholesky_solve(G, factor)
    whole = torch.cholesky_solve(half.T.contiguous(), factor)
    return math.sqrt(max(0.0, float(torch.linalg.eigvalsh((whole + whole.T) / 2)[-1])))


def longest_response(delta: Tensor, factor: Tensor, smallest: float, narrow: float) -> float:
    """The largest |H^-1 x|_G, |x| = 1, for any Hessian that is at least `narrow` times the anchor's."""
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


def bend_beyond_second_order(spread: float) -> float:
    """(e^S - 1)/S - 1 - S/2."""
    if spread > 100:
        return math.inf
    return spread**2 / 5 if spread < 0.01 else math.expm1(spread) / spread - 1 - spread / 2


def largest_eigenvalue(G: Tensor) -> float:
    """Upper bound of the largest eigenvalue of a positive semi-definite matrix."""
    least = min(float(G.norm()), float(G.diagonal().sum().clamp(min=0)))
    return least if len(G) > MAX_FULL_SIZE else min(least, float(G.abs().sum(1).max()))
