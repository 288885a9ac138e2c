"""L-BFGS with a preconditioner, for wide GLMs: most steps cost one pass for the gradient.

Passes are float32 until the gradient seems small enough; then a careful one tells. The pairs (s, y) of earlier steps
are kept as long as the solve goes on, and a gradient that is known at the start gives the first of them for nothing.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field

from torch import Tensor

Inverse = Callable[[Tensor], Tensor]
"""About the inverse of a Hessian, as a function of a vector."""
MAX_PAIRS = 20
MAX_RISE = 0.3
"""A step is too long if the objective rises at its end by this fraction of how it fell at its start."""
CONTRACTION = 0.3
"""What a preconditioned step usually leaves of a gradient."""
MAX_TRIES = 20
FIRST_PRECISION_CHECK = 8
"""Passes before the first check whether float32 limits the progress; each further one waits twice as long."""


@dataclass(frozen=True)
class ValueAndGradient:
    """Value and gradient of the objective at some weights."""

    value: float
    gradient: Tensor
    careful: bool = False


Evaluate = Callable[[Tensor, bool], ValueAndGradient]
"""One pass: at weights, careful or not."""


@dataclass
class Pairs:
    """Steps and what they changed of the gradient, newest last."""

    steps: list[Tensor] = field(default_factory=list)
    changes: list[Tensor] = field(default_factory=list)

    def add(self, step: Tensor, change: Tensor) -> None:
        """Keep a pair, if it shows curvature."""
        s, y = step.float(), change.float()
        if float(s @ y) > max(1e-10 * float(s.norm()) * float(y.norm()), 1e-30):
            self.steps.append(s)
            self.changes.append(y)
            del self.steps[:-MAX_PAIRS], self.changes[:-MAX_PAIRS]

    def direction(self, gradient: Tensor, inverse: Inverse) -> Tensor:
        """Minus the inverse Hessian, as the pairs know it, times the gradient."""
        q, used = gradient.float(), []
        for s, y in zip(reversed(self.steps), reversed(self.changes), strict=True):
            rho = 1 / float(s @ y)
            alpha = rho * float(s @ q)
            q = q - alpha * y
            used.append((s, y, rho, alpha))
        z = inverse(q)
        if self.steps:
            s, y = self.steps[-1], self.changes[-1]
            bent = float(y @ inverse(y))
            z = z * (float(s @ y) / bent) if bent > 0 else z
        for s, y, rho, alpha in reversed(used):
            z = z + s * (alpha - rho * float(y @ z))
        return -z.to(gradient)


@dataclass(frozen=True)
class Descent:
    """Where a descent is."""

    w: Tensor
    evaluation: ValueAndGradient
    passes: int
    stopped: bool
    """Whether the rule said so; else no way down was found, or the passes were spent."""


def preconditioned_lbfgs(
    evaluate: Evaluate,
    w: Tensor,
    inverse: Inverse,
    project: Callable[[Tensor], Tensor],
    *,
    near: Callable[[Tensor, Tensor], float],
    enough: Callable[[Tensor, ValueAndGradient], bool] | None,
    start: Tensor | None = None,
    max_passes: int = 300,
    report: Callable[[int, float], None] | None = None,
    saturated: Callable[[Tensor, Tensor], bool] = lambda w, gradient: False,
) -> Descent:
    """Go down until the gradient is small enough and, if there is such a rule, a careful pass agrees.

    Parameters
    ----------
    evaluate
        One pass: value and gradient at weights, careful or not.
    w
        (P,) weights to begin with.
    inverse
        The preconditioner.
    project
        Takes away directions that change no prediction.
    near
        From weights and gradient to how far it still is, 1 being near enough. It may grow more demanding after a
        careful pass that was not enough.
    enough
        Whether what a careful pass found will do; None: no such pass is made.
    start
        The gradient at w, if it is known: it saves a pass.
    max_passes
        Passes at most.
    report
        Hears of each step: the passes so far, and how far it still is.
    saturated
        Says of weights and gradient that nothing but the penalty has a say there: a long way back, and no curvature to
        go it by.
    """
    pairs, careful, passes, checked = Pairs(), False, 0, 0
    current = ValueAndGradient(math.inf, start) if start is not None else None
    if current is None:
        current, passes = evaluate(w, False), 1
    unseen = start is not None
    while True:
        distance = near(w, current.gradient)
        if report:
            report(passes, distance)
        if distance <= 1 and not unseen:
            if enough is None:
                return Descent(w, current, passes, True)
            if not current.careful and passes < max_passes:
                rough, current, passes = current, evaluate(w, True), passes + 1
                careful = careful or near(w, rough.gradient - current.gradient) > 0.25  # float32 is too rough for this
            if current.careful and enough(w, current):
                return Descent(w, current, passes, True)
        if passes >= max_passes:
            return Descent(w, current, passes, False)
        # where one step should do, its pass is the careful one
        closer = careful or (enough is not None and unseen and distance * CONTRACTION <= 1)
        step, found, tries = line_search(
            evaluate, w, current, pairs, inverse, project, closer, max_passes - passes, saturated
        )
        passes += tries
        if found is None:
            if careful or passes >= max_passes:
                return Descent(w, current, passes, False)
            # float32 sees no way down: evaluate carefully
            careful, pairs, unseen = True, Pairs(), False
            current, passes = evaluate(w, True), passes + 1
            continue
        stalls = not found.careful and float(found.gradient.norm()) > 0.7 * float(current.gradient.norm())
        w, current, unseen = w + step, found, False
        if stalls and enough is not None and passes >= FIRST_PRECISION_CHECK + 2 * checked and passes < max_passes:
            # slow going may be the problem's fault, or that of float32: whose, a careful pass tells
            rough, current, passes = current, evaluate(w, True), passes + 1
            careful, checked = (
                float((rough.gradient - current.gradient).norm()) > 0.25 * float(current.gradient.norm()),
                passes,
            )
            if careful:
                pairs = Pairs()


def line_search(
    evaluate: Evaluate,
    w: Tensor,
    current: ValueAndGradient,
    pairs: Pairs,
    inverse: Inverse,
    project: Callable[[Tensor], Tensor],
    careful: bool,
    max_passes: int,
    saturated: Callable[[Tensor, Tensor], bool],
) -> tuple[Tensor, ValueAndGradient | None, int]:
    """One step, value and gradient there, and the passes it took.

    The whole step is taken if the slope there is not steeply up (the objective is convex: then it went down) and the
    value, where one is known, not higher; else the secant says where to try next.
    """
    d = project(pairs.direction(current.gradient, inverse))
    if not float(current.gradient @ d) < 0 and pairs.steps:
        pairs.steps.clear()
        pairs.changes.clear()
        d = project(pairs.direction(current.gradient, inverse))
    before, t = float(current.gradient @ d), 1.0
    if not before < 0:
        return d, None, 0
    for tries in range(1, min(MAX_TRIES, max_passes) + 1):
        found = evaluate(w + t * d, careful)
        after = float(found.gradient @ d)
        fine = math.isfinite(found.value) and math.isfinite(after)
        if fine and after > 0 and tries <= 6 and saturated(w + t * d, found.gradient):
            t *= 0.3
            continue
        if fine and after <= -MAX_RISE * before and found.value <= current.value + 1e-6 * abs(current.value):
            pairs.add(t * d, found.gradient - current.gradient)
            return t * d, found, tries
        t *= min(0.7, max(0.05, before / (before - after))) if fine else 0.3
    return d, None, min(MAX_TRIES, max_passes)


def no_projection(v: Tensor) -> Tensor:
    """For models whose weights all matter."""
    return v


def project_gauge(outputs: int) -> Callable[[Tensor], Tensor]:
    """Takes away what is the same for all classes of a softmax: the optimum has none of it.

    No preconditioner knows that direction, in which nothing but the penalty has curvature.
    """

    def project(v: Tensor) -> Tensor:
        rows = v.view(outputs, -1)
        return (rows - rows.mean(0)).reshape(-1)

    return project
