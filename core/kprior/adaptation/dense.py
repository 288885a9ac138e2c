"""Adaptation of a GLM whose Hessian fits: exact sums at the anchor, and a certificate without a pass.

The past is a quadratic around the anchor, examples at hand (the memory, and what is added) enter by their own losses.
This is the K-prior of `objective/build.py` with w* = w0, v = 1 and Q what the examples at hand leave of G. A change of
m examples costs O(m P^2 + P^3), whatever the past.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from core.kprior.anchor import Anchor
from core.kprior.certificate.anchored_bound import (
    AnchoredBound,
    ExactRows,
    anchored_bound,
    closer_bound,
    known_gradient,
)
from core.kprior.certificate.kinked_bound import kinked_bound
from core.kprior.cost import Cost
from core.kprior.curvature import Full, cholesky
from core.kprior.data.examples import Examples
from core.kprior.memory.memory import Memory
from core.kprior.model.gauge import fill_gauge, shift_directions, without_shift
from core.kprior.model.predictor import Predictor
from core.kprior.model.regularizers import L2
from core.kprior.model.spec import Regularizer
from core.kprior.objective.objective import Objective
from core.kprior.objective.surrogate import Surrogate
from core.kprior.objective.terms import Term
from core.kprior.passes.rounding_error import EPSILON
from core.kprior.solvers import Training, solve
from core.kprior.solvers.newton import newton
from core.kprior.state import State, align, move_anchor

MAX_WEIGHTS_FOR_CLOSER_BOUND = 500
"""Up to this size, a bound that is not small is computed more closely."""
SMALL_BOUND = 1e-3
"""A bound below this, relative to the weights, is small."""


@dataclass(frozen=True)
class PastSums:
    """The sums before a change, if all that came with it is at hand: its reach speaks of all other examples."""

    anchor: Anchor
    regularizer: L2

    def spread(self, predictor: Predictor, w: Tensor) -> float:
        """How far the outputs of any example that is not at hand can be from where they were at the anchor.

        In the norm of the old Hessian: what came, and may have moved the weights far, is not in it.
        """
        assert isinstance(self.anchor.curvature, Full)
        d = w - self.anchor.w
        whole = float(d @ self.anchor.curvature.product(d)) + float((self.regularizer.delta * d * d).sum())
        blur = 4 * EPSILON * self.anchor.mass * float(d @ d)
        return predictor.family.self_concordance * math.sqrt(self.anchor.reach * max(0.0, whole + blur))


@dataclass(frozen=True)
class AnchoredModel:
    """A GLM on the way from one state to the next: the sums after the change, and the examples at hand."""

    predictor: Predictor
    regularizer: L2
    anchor: Anchor
    factor: Tensor
    """The Cholesky factor of G + delta, gauge filled in."""
    exact: tuple[ExactRows, ...]
    memory: Memory
    rows: Examples
    """Those that the memory refers to."""
    count: int
    surrogate: Surrogate | None
    past: PastSums | None = None

    @classmethod
    def of(cls, state: State, memory: Examples) -> AnchoredModel:
        """A state as it is."""
        rows = align(state, memory)
        factor = cholesky(hessian_of(state.predictor, state.regularizer, state.anchor))
        exact = (exact_rows(state.predictor, state.anchor.w, rows),)
        kept = (state.memory, rows, state.count, state.surrogate)
        return cls(state.predictor, state.regularizer, state.anchor, factor, exact, *kept)

    def solve(self, start: Tensor, training: Training, cost: Cost) -> Tensor:
        """The minimiser of the anchored objective."""
        shifts = shift_directions(self.predictor, self.regularizer.delta)
        w = self.solve_by_chords(without_shift(start, shifts), cost)
        if w is None:
            w = solve(self.objective(), start, training, cost).w
        return without_shift(w, shifts)

    def solve_by_chords(self, w: Tensor, cost: Cost) -> Tensor | None:
        """Newton steps with the Hessian of the anchor: no curvature is computed; None where they do not converge."""
        before = math.inf
        for _ in range(60):
            k = known_gradient(self.predictor, self.anchor, self.regularizer, self.exact, w)
            cost.backward_passes += sum(len(rows.phi) for rows in self.exact)
            step = -torch.cholesky_solve(k[:, None], self.factor)[:, 0]
            size = math.sqrt(max(0.0, -float(k @ step))) if bool(k.isfinite().all()) else math.inf
            if size > 0.5 * before:
                # either rounding is all that is left, or outputs move too far for the anchor's curvature
                return w if before <= 1e-7 * (1 + self.length(w)) else None
            w, before = w + step, size
            if size <= 1e-13 * (1 + self.length(w)):
                return w
        return None

    def spread(self, w: Tensor) -> float:
        """How far the outputs of any example at hand are from where they were at the anchor."""
        changes = [rows.outputs(w) - rows.f0 for rows in self.exact if len(rows.phi)]
        return max((float(self.predictor.family.spread(change).max()) for change in changes), default=0.0)

    def bound(self, w: Tensor) -> AnchoredBound:
        """How far from the retrain the weights w can be."""
        limit = math.inf if self.past is None else self.past.spread(self.predictor, w)
        given = (self.predictor, self.anchor, self.regularizer, self.exact, w)
        if self.predictor.family.kinked:
            return kinked_bound(*given, self.factor, limit)
        plain = anchored_bound(*given, self.factor, limit)
        if (
            plain.distance <= SMALL_BOUND * float(w.norm())
            or self.predictor.size > MAX_WEIGHTS_FOR_CLOSER_BOUND
            or not self.anchor.exact
        ):
            return plain
        close = closer_bound(*given, self.factor, limit)
        return close if close is not None and close.distance < plain.distance else plain

    def state(self, w: Tensor, spec: Regularizer) -> State:
        """The next state, with the weights w."""
        return State(self.predictor, self.regularizer, spec, w, self.anchor, self.memory, self.count, self.surrogate)

    def length(self, w: Tensor) -> float:
        """|w|_H."""
        return float((self.factor.T @ w).norm())

    def solve_by_secants(self, w: Tensor, training: Training, cost: Cost) -> Tensor:
        """A better guess where outputs move so far that tangents mean little: no bound speaks for either.

        The curvature of examples that are not at hand is scaled by the root of how the mean slope of h between f0 and f
        compares with h'(f0) on the memory: sum v (h - h0)(f - f0) / sum v (f - f0)' h'(f0) (f - f0). The root, halfway
        between both, did better on retained rows than either: a small memory estimates the ratio roughly.
        """
        family, rows, v = self.predictor.family, self.exact[0], self.memory.weight
        if family.kinked:
            return w
        v = v if rows.weight is None else v * rows.weight
        step = rows.outputs(w) - rows.f0
        tangent = float((v * (step * rows.tangent(family, step)).sum(1)).sum())
        secant = float((v * ((family.mean(rows.f0 + step) - family.mean(rows.f0)) * step).sum(1)).sum())
        if not (tangent > 0 and secant > 0):
            return w
        shifts = shift_directions(self.predictor, self.regularizer.delta)
        return without_shift(newton(self.objective(math.sqrt(secant / tangent)), w, training, cost).w, shifts)

    def objective(self, scale: float = 1.0) -> Objective:
        """The same as an objective that Newton's method can evaluate anywhere; examples not at hand may be scaled."""
        assert isinstance(self.anchor.curvature, Full)
        family, delta = self.predictor.family, self.regularizer.delta
        outside = self.anchor.curvature.matrix.clone()
        linear = self.anchor.gradient + self.regularizer.slope()
        objective = Objective(self.predictor, delta, linear, centre=self.anchor.w)
        for rows in self.exact:
            if len(rows.phi):
                outside -= rows.hessian(family, rows.f0)
                targets = family.mean(rows.f0)
                if family.kinked:  # the Bregman divergence of a row's own loss, whose slope the linear term has already
                    targets, slope = rows.y, rows.weighted(family.residual(rows.y, rows.f0))
                    objective.linear = objective.linear - (slope.T @ rows.phi).reshape(-1)
                objective.terms.append(Term.of_features(self.predictor, rows.phi, targets, rows.weight))
        objective.curvature = Full(scale * outside)
        objective.curvature.clip()
        return objective


def hessian_of(predictor: Predictor, regularizer: L2, anchor: Anchor) -> Tensor:
    """G + delta at the anchor, with the flat directions of a softmax filled in."""
    assert isinstance(anchor.curvature, Full)
    H = anchor.curvature.matrix + torch.diag(regularizer.delta)
    return fill_gauge(H, shift_directions(predictor, regularizer.delta))


def exact_rows(predictor: Predictor, w: Tensor, rows: Examples) -> ExactRows:
    """Examples at hand, as the anchor sees them."""
    phi = predictor.features(rows.x)
    return ExactRows(phi, phi @ w.view(predictor.family.outputs, -1).T, rows.y.to(phi), predictor.weigh(rows))


def recentre(state: State, memory: Examples) -> State:
    """The state with its anchor at the served weights, as far as the sums and the memory tell: an estimate."""
    if torch.equal(state.w, state.anchor.w):
        return state
    predictor, anchor = state.predictor, state.anchor
    if not isinstance(anchor.curvature, Full):
        return recentre_roughly(state, memory)
    anchored = AnchoredModel.of(state, memory)
    gradient = known_gradient(predictor, anchor, state.regularizer, anchored.exact, state.w)
    G = anchor.curvature.matrix.clone()
    for rows in anchored.exact:
        G += rows.hessian(predictor.family, rows.outputs(state.w))
        G -= rows.hessian(predictor.family, rows.f0)
    curvature = Full(G)
    curvature.clip()
    value = anchor.tangent_value(state.w - anchor.w)
    moved = Anchor(
        state.w, gradient - state.regularizer.gradient(state.w), curvature, value=value, turnover=anchor.turnover
    )
    return move_anchor(state, moved, anchored.rows)


def recentre_roughly(state: State, memory: Examples) -> State:
    """The same for a state that has less than its whole curvature."""
    anchor, gradient = state.anchor, state.anchor.gradient
    if anchor.curvature is not None:
        gradient = gradient + anchor.curvature.product(state.w - anchor.w)
    return move_anchor(state, Anchor(state.w, gradient, anchor.curvature), align(state, memory))
