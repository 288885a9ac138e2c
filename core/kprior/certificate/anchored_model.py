"""A GLM whose Hessian fits in memory: exact sums at the anchor, its objective, and bounds without a pass.

The past is a quadratic around the anchor, and the examples at hand (the memory and added examples) enter by their own
losses. This is the K-prior of `objective/kprior_objective.py` with w* = w0, v = 1, and Q the part of G that is not
from examples at hand. A change of m examples costs O(m P^2 + P^3), independent of the past.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from torch import Tensor

from core.kprior.certificate.anchored_bound import (
    AnchoredBound,
    anchored_bound,
    closer_bound,
    known_gradient,
)
from core.kprior.certificate.exact_rows import ExactRows
from core.kprior.certificate.kinked_bound import kinked_bound
from core.kprior.curvature import Full, cholesky, solve_factored
from core.kprior.curvature.surrogate import Surrogate
from core.kprior.data.examples import Examples
from core.kprior.memory.memory import Memory
from core.kprior.model.gauge import shift_directions, without_shift
from core.kprior.model.predictor import Predictor
from core.kprior.model.regularizers import L2
from core.kprior.model.spec import Regularizer
from core.kprior.objective.objective import Objective
from core.kprior.objective.terms import Term
from core.kprior.passes.cost import Cost
from core.kprior.passes.rounding_error import EPSILON
from core.kprior.solvers import Training, solve
from core.kprior.solvers.newton import newton
from core.kprior.state import State, align
from core.kprior.state.anchor import Anchor, hessian_of

MAX_WEIGHTS_FOR_CLOSER_BOUND = 500
"""Up to this number of weights, a tighter bound is computed if the first one is not small."""
SMALL_BOUND = 1e-3
"""A bound is small if it is below this, relative to the weights."""


@dataclass(frozen=True)
class PastSums:
    """The sums before a change whose added examples are all at hand: its reach then covers all other examples."""

    anchor: Anchor
    regularizer: L2

    def spread(self, predictor: Predictor, w: Tensor) -> float:
        """Upper bound of the change of outputs since the anchor, for examples that are not at hand.

        It uses the norm of the old Hessian, which does not include added examples that may have moved the weights far.
        """
        assert isinstance(self.anchor.curvature, Full)
        d = w - self.anchor.w
        whole = float(d @ self.anchor.curvature.product(d)) + float((self.regularizer.delta * d * d).sum())
        blur = 4 * EPSILON * self.anchor.mass * float(d @ d)
        return predictor.family.self_concordance * math.sqrt(self.anchor.reach * max(0.0, whole + blur))


@dataclass(frozen=True)
class AnchoredModel:
    """A GLM between one state and the next: the sums after the change, and the examples at hand."""

    predictor: Predictor
    regularizer: L2
    anchor: Anchor
    factor: Tensor
    """The Cholesky factor of G + delta, gauge filled in."""
    exact: tuple[ExactRows, ...]
    memory: Memory
    rows: Examples
    """The rows that the memory refers to."""
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
        """Newton steps with the Hessian of the anchor, without computing curvature; None if they do not converge."""
        before = math.inf
        for _ in range(60):
            k = known_gradient(self.predictor, self.anchor, self.regularizer, self.exact, w)
            cost.backward_passes += sum(len(rows.phi) for rows in self.exact)
            step = -solve_factored(self.factor, k)
            size = math.sqrt(max(0.0, -float(k @ step))) if bool(k.isfinite().all()) else math.inf
            if size > 0.5 * before:
                # Either only rounding errors are left, or outputs move too far for the anchor's curvature.
                return w if before <= 1e-7 * (1 + self.length(w)) else None
            w, before = w + step, size
            if size <= 1e-13 * (1 + self.length(w)):
                return w
        return None

    def spread(self, w: Tensor) -> float:
        """The largest change of outputs since the anchor, among examples at hand."""
        changes = [rows.outputs(w) - rows.f0 for rows in self.exact if len(rows.phi)]
        return max((float(self.predictor.family.spread(change).max()) for change in changes), default=0.0)

    def bound(self, w: Tensor) -> AnchoredBound:
        """Bound the distance of the weights w to the retrain."""
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
        """A better estimate if outputs move so far that tangents are poor approximations; neither has a bound.

        The curvature of examples that are not at hand is scaled by the root of how the mean slope of h between f0 and f
        compares with h'(f0) on the memory: sum v (h - h0)(f - f0) / sum v (f - f0)' h'(f0) (f - f0). The root, halfway
        between both, did better on retained rows than either, because a small memory estimates the ratio roughly.
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
        """The objective for Newton's method; the curvature of examples that are not at hand can be scaled."""
        assert isinstance(self.anchor.curvature, Full)
        family, delta = self.predictor.family, self.regularizer.delta
        outside = self.anchor.curvature.matrix.clone()
        linear = self.anchor.gradient + self.regularizer.slope()
        objective = Objective(self.predictor, delta, linear, centre=self.anchor.w)
        for rows in self.exact:
            if len(rows.phi):
                outside -= rows.hessian(family, rows.f0)
                targets = family.mean(rows.f0)
                if family.kinked:  # the Bregman divergence of the row's loss; its slope is in the linear term already
                    targets, slope = rows.y, rows.weighted(family.residual(rows.y, rows.f0))
                    objective.linear = objective.linear - (slope.T @ rows.phi).reshape(-1)
                objective.terms.append(Term.of_features(self.predictor, rows.phi, targets, rows.weight))
        objective.curvature = Full(scale * outside)
        objective.curvature.clip()
        return objective


def exact_rows(predictor: Predictor, w: Tensor, rows: Examples) -> ExactRows:
    """Examples at hand, relative to an anchor at w."""
    phi = predictor.features(rows.x)
    return ExactRows(phi, phi @ w.view(predictor.family.outputs, -1).T, rows.y.to(phi), predictor.weigh(rows))
