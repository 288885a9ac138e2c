"""The bound of a GLM with a piecewise quadratic loss, from sums at its anchor.

The curvature of such a loss jumps where an output passes a kink, so no derivative beyond the second bounds its change.
But the loss of a row that passes no kink is quadratic, and the memory has the rows that are nearest to their kinks.
With H the Hessian at the anchor w0, the `reach` s of all other rows is the largest |phi_i|^2 in H^-1, divided by the
square of the row's slack: none of them passes a kink between w0 and w0 + u while sqrt(s) |u|_H < 1. So with d = w - w0
and E the rows at hand (the memory, and what was added),

    grad F(w) = k = g + G d + grad R(w) + sum_E phi (r(f) - r(f0) - r'(f0) (f - f0))    exactly, if sqrt(s) |d|_H < 1.

Let v be the step from w to the retrain. While |v|_H <= t <= (1 - sqrt(s) |d|_H) / sqrt(s), the curvature along it is at
least A: that of the rows outside E at w0, of those rows of E that have curvature at w and cannot lose it within t, and
of the penalty. F is convex, so its slope along v is at most zero until the retrain, and at least k'v + |v|_A^2 within
t. Hence

    |v|_A <= n = |k| in A^-1,   if   sqrt(c) n <= t,   c the least with H <= c A,

because beyond t the slope would be positive. If no row of E can gain or lose curvature within t, F is quadratic there,
and v = -A^-1 k. This is the bound by strong convexity with the curvature that is certain to remain, so rows can
determine a bias without a penalty. If every weight has a penalty of at least delta, |v| <= |k| / delta holds whichever
rows pass kinks. If w is too far from w0 for k to be known, the gradient k0 at w0 still implies delta |u|^2 <= -k0'u for
the retrain w0 + u, which is therefore in the ball around w0 - k0 / (2 delta) that has w0 on its surface.

`t` is found by trial: twice the value that n requires, as far as the reach allows.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from core.kprior.certificate.anchored_bound import (
    AnchoredBound,
    gradient_error,
    hessian_blur,
    known_gradient,
)
from core.kprior.certificate.exact_rows import ExactRows
from core.kprior.curvature import Full
from core.kprior.curvature.full import variance_hessian
from core.kprior.model.predictor import Predictor
from core.kprior.model.regularizers import L2
from core.kprior.passes.leverage import largest_ratio
from core.kprior.passes.rounding_error import EPSILON, matrix_rounding
from core.kprior.state.anchor import Anchor

MAX_TRIES = 6
ROUNDING_SLACK = 1 + 1e-6
"""Allows for the rounding of a leverage."""


def kinked_bound(
    predictor: Predictor,
    anchor: Anchor,
    regularizer: L2,
    exact: Sequence[ExactRows],
    w: Tensor,
    factor: Tensor,
    limit: float = math.inf,
) -> AnchoredBound:
    """The bound of the module's docstring; infinite if there is none.

    `factor` is the Cholesky factor of H; `limit` is another upper bound of sqrt(s) |d|_H.
    """
    assert isinstance(anchor.curvature, Full)
    d = w - anchor.w
    k = known_gradient(predictor, anchor, regularizer, exact, w)
    error, moved = gradient_error(anchor, regularizer, w), bool(d.any())
    nothing = torch.zeros_like(w)
    unknown = AnchoredBound(math.inf, math.inf, nothing, math.inf, factor)
    if not anchor.exact or not bool(k.isfinite().all()) or not math.isfinite(error):
        return unknown
    spread = min(limit, math.sqrt(anchor.reach) * float((factor.T @ d).norm()) * ROUNDING_SLACK) if moved else 0.0
    ridge = float(regularizer.delta.min())
    far = ball_around(anchor, regularizer, ridge, d) if ridge > 0 else math.inf
    if not spread < 1:  # a row that is not at hand may have passed a kink, so the gradient is unknown
        return replace(unknown, distance=far)
    norm = float(k.norm()) + error
    plain = AnchoredBound(min(norm / ridge, far) if ridge > 0 else math.inf, norm, nothing, math.inf, factor)
    if not hessian_blur(anchor, regularizer) < 0.5:
        return plain
    room = (1 - spread) / (math.sqrt(anchor.reach) * ROUNDING_SLACK) if anchor.reach > 0 else math.inf
    within = HeldCurvature(predictor, anchor, regularizer, exact, w, factor)
    radius = 4 * math.sqrt(float(k @ torch.cholesky_solve(k[:, None], factor)[:, 0])) + 4 * error / math.sqrt(
        anchor.smallest
    )
    for _ in range(MAX_TRIES):
        radius = min(radius, room)
        found = within.bound(k, error, radius)
        if found is None:
            return plain
        if found.needed <= radius:
            return min(found.bound(norm), plain, key=lambda each: each.distance)
        if radius == room:
            return plain
        radius = 2 * found.needed
    return plain


def ball_around(anchor: Anchor, regularizer: L2, ridge: float, d: Tensor) -> float:
    """The largest distance from w0 + d to a point of the ball that the gradient at the anchor implies."""
    k0 = anchor.gradient + regularizer.gradient(anchor.w)
    error = 4 * EPSILON * (2 * anchor.rounding + float(regularizer.magnitude(anchor.w).sum()))
    return float((d + k0 / (2 * ridge)).norm()) + (float(k0.norm()) / 2 + error) / ridge


class HeldCurvature:
    """A of the module's formulas, for any t."""

    def __init__(
        self,
        predictor: Predictor,
        anchor: Anchor,
        regularizer: L2,
        exact: Sequence[ExactRows],
        w: Tensor,
        factor: Tensor,
    ) -> None:
        assert isinstance(anchor.curvature, Full)
        family = predictor.family
        self.factor = factor
        self.hessian = anchor.curvature.matrix + torch.diag(regularizer.delta)
        self.scale = 2 * anchor.mass + float(regularizer.delta.sum())
        self.rows = []
        for rows in exact:
            if not len(rows.phi):
                continue
            f = rows.outputs(w)
            before, now = family.curvature(rows.y, rows.f0)[:, 0], family.curvature(rows.y, f)[:, 0]
            length = torch.linalg.solve_triangular(factor, rows.phi.T, upper=False).norm(dim=0) * ROUNDING_SLACK
            lost = (rows.phi.shape[1] + 3) * EPSILON * rows.phi.norm(dim=1) * w.norm()
            self.rows.append((rows, before, now, family.slack(rows.y, f)[:, 0] - lost, length))

    def bound(self, k: Tensor, error: float, radius: float) -> GuaranteedCurvature | None:
        """The result if nothing moves by more than the radius; None if A is singular."""
        A, steady = self.hessian.clone(), True
        changed = False
        for rows, before, now, slack, length in self.rows:
            free = slack <= length * radius
            steady = steady and not bool(free.any())
            held = torch.where(free, torch.zeros_like(now), now)
            some = torch.nonzero(held != before)[:, 0]
            if len(some):
                weight = None if rows.weight is None else rows.weight[some]
                A += variance_hessian(rows.phi[some], (held - before)[some], weight)
                changed = True
        factor, failed = torch.linalg.cholesky_ex(A) if changed else (self.factor, 0)
        if int(failed):
            return None
        margin = matrix_rounding(self.scale, len(A))
        smallest = float(torch.linalg.eigvalsh(A)[0]) - margin
        if not smallest > margin:
            return None
        eye = torch.eye(len(A), dtype=A.dtype, device=A.device)
        ratio = 1.0
        if changed:
            ratio = largest_ratio(self.hessian, torch.linalg.solve_triangular(factor, eye, upper=False))
        ratio = ratio * (1 + 2 * margin / smallest)
        step = -torch.cholesky_solve(k[:, None], factor)[:, 0]
        grown = 1 + margin / smallest
        size = math.sqrt(max(0.0, -float(k @ step))) * grown + error / math.sqrt(smallest)
        return GuaranteedCurvature(
            size, math.sqrt(max(1.0, ratio)) * size, smallest, step, factor, steady, error, margin
        )


class GuaranteedCurvature:
    """The bound that a gradient and the curvature that is certain to remain imply."""

    def __init__(
        self,
        size: float,
        needed: float,
        smallest: float,
        step: Tensor,
        factor: Tensor,
        steady: bool,
        error: float,
        margin: float,
    ) -> None:
        self.needed = needed
        """The least t for which the bound holds."""
        self._found = (size, smallest, step, factor, steady, error, margin)

    def bound(self, norm: float) -> AnchoredBound:
        size, smallest, step, factor, steady, error, margin = self._found
        distance = size / math.sqrt(smallest)
        if not steady:
            return AnchoredBound(distance, norm, torch.zeros_like(step), size, factor)
        # quadratic, except for rounding errors of the gradient and of the Hessian
        rest = (error + 2 * margin * float(step.norm())) / smallest
        blurred = rest * math.sqrt(smallest) + margin * float(step.norm()) / math.sqrt(smallest)
        return AnchoredBound(min(distance, float(step.norm()) + rest), norm, step, blurred, factor)
