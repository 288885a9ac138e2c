"""L-BFGS with a preconditioner, for wide GLMs: most steps need a single pass, for the gradient.

Passes use float32 until the gradient seems small enough; then a careful pass in float64 decides. The pairs (s, y) of
earlier steps are kept during the whole solve; if the initial gradient is known, the first pair needs no extra pass.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, field

from torch import Tensor

Inverse = Callable[[Tensor], Tensor]
"""Approximate inverse of a Hessian, as a function of a vector."""
MAX_PAIRS = 20
MAX_RISE = 0.3
"""A step is too long if the slope at its end exceeds this fraction of the initial descent."""
CONTRACTION = 0.3
"""Fraction of the gradient that usually remains after a preconditioned step."""
MAX_TRIES = 20
FIRST_PRECISION_CHECK = 8
"""Passes before the first check whether float32 limits the progress; the interval doubles after each check."""


@dataclass(frozen=True)
class ValueAndGradient:
    """Value and gradient of the objective at given weights."""

    value: float
    gradient: Tensor
    careful: bool = False


Evaluate = Callable[[Tensor, bool], ValueAndGradient]
"""One pass at given weights, careful or not."""


@dataclass
class Pairs:
    """Steps and the changes of the gradient along them, newest last."""

    steps: list[Tensor] = field(default_factory=list)
    changes: list[Tensor] = field(default_factory=list)

    def add(self, step: Tensor, change: Tensor) -> None:
        """Store a pair if it has positive curvature."""
        s, y = step.float(), change.float()
        if float(s @ y) > max(1e-10 * float(s.norm()) * float(y.norm()), 1e-30):
            self.steps.append(s)
            self.changes.append(y)
            del self.steps[:-MAX_PAIRS], self.changes[:-MAX_PAIRS]

    def direction(self, gradient: Tensor, inverse: Inverse) -> Tensor:
        """The descent direction: minus the inverse Hessian, as estimated from the pairs, times the gradient."""
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
class DescentProblem:
    """The objective and its preconditioner."""

    evaluate: Evaluate
    """One pass: value and gradient at weights, careful or not."""
    inverse: Inverse
    """The preconditioner."""
    project: Callable[[Tensor], Tensor]
    """Removes directions that change no prediction."""
    saturated: Callable[[Tensor, Tensor], bool] = lambda w, gradient: False
    """Whether only the penalty matters at given weights and gradient, so that no curvature leads back from there."""


@dataclass(frozen=True)
class Descent:
    """The result of a descent."""

    w: Tensor
    evaluation: ValueAndGradient
    passes: int
    stopped: bool
    """Whether the stopping rule was met; else no descent was found, or the passes were used up."""


def preconditioned_lbfgs(
    problem: DescentProblem,
    w: Tensor,
    *,
    near: Callable[[Tensor, Tensor], float],
    enough: Callable[[Tensor, ValueAndGradient], bool] | None,
    start: Tensor | None = None,
    max_passes: int = 300,
    report: Callable[[int, float], None] | None = None,
) -> Descent:
    """Minimise until the gradient is small enough and, if `enough` is given, a careful pass confirms it.

    `near` maps weights and gradient to the remaining distance, where 1 is near enough; it may become stricter after a
    careful pass that did not suffice. `enough` judges the result of a careful pass. `start` is the gradient at w if it
    is known, which saves a pass. `report` is called at each step with the number of passes and the remaining distance.
    """
    evaluate = problem.evaluate
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
                careful = careful or near(w, rough.gradient - current.gradient) > 0.25  # float32 is not precise enough
            if current.careful and enough(w, current):
                return Descent(w, current, passes, True)
        if passes >= max_passes:
            return Descent(w, current, passes, False)
        # if one step should suffice, its pass is the careful one
        closer = careful or (enough is not None and unseen and distance * CONTRACTION <= 1)
        step, found, tries = line_search(problem, w, current, pairs, closer, max_passes - passes)
        passes += tries
        if found is None:
            if careful or passes >= max_passes:
                return Descent(w, current, passes, False)
            # no descent in float32: evaluate carefully
            careful, pairs, unseen = True, Pairs(), False
            current, passes = evaluate(w, True), passes + 1
            continue
        stalls = not found.careful and float(found.gradient.norm()) > 0.7 * float(current.gradient.norm())
        w, current, unseen = w + step, found, False
        if stalls and enough is not None and passes >= FIRST_PRECISION_CHECK + 2 * checked and passes < max_passes:
            # slow progress is due to the problem or to float32; a careful pass distinguishes them
            rough, current, passes = current, evaluate(w, True), passes + 1
            careful, checked = (
                float((rough.gradient - current.gradient).norm()) > 0.25 * float(current.gradient.norm()),
                passes,
            )
            if careful:
                pairs = Pairs()


def line_search(
    problem: DescentProblem, w: Tensor, current: ValueAndGradient, pairs: Pairs, careful: bool, max_passes: int
) -> tuple[Tensor, ValueAndGradient | None, int]:
    """Take one step; returns the step, value and gradient at its end, and the number of passes.

    The full step is taken if the slope at its end is not steep (the objective is convex, so it has decreased) and the
    value, if it is known, is not higher; otherwise a secant gives the next trial.
    """
    d = problem.project(pairs.direction(current.gradient, problem.inverse))
    if not float(current.gradient @ d) < 0 and pairs.steps:
        pairs.steps.clear()
        pairs.changes.clear()
        d = problem.project(pairs.direction(current.gradient, problem.inverse))
    before, t = float(current.gradient @ d), 1.0
    if not before < 0:
        return d, None, 0
    for tries in range(1, min(MAX_TRIES, max_passes) + 1):
        found = problem.evaluate(w + t * d, careful)
        after = float(found.gradient @ d)
        fine = math.isfinite(found.value) and math.isfinite(after)
        if fine and after > 0 and tries <= 6 and problem.saturated(w + t * d, found.gradient):
            t *= 0.3
            continue
        if fine and after <= -MAX_RISE * before and found.value <= current.value + 1e-6 * abs(current.value):
            pairs.add(t * d, found.gradient - current.gradient)
            return t * d, found, tries
        t *= min(0.7, max(0.05, before / (before - after))) if fine else 0.3
    return d, None, min(MAX_TRIES, max_passes)


def no_projection(v: Tensor) -> Tensor:
    """The projection of models in which all directions change predictions."""
    return v


def project_gauge(outputs: int) -> Callable[[Tensor], Tensor]:
    """Subtract the mean over the classes of a softmax, which is zero at the optimum.

    Only the penalty has curvature in that direction, so no preconditioner covers it.
    """

    def project(v: Tensor) -> Tensor:
        rows = v.view(outputs, -1)
        return (rows - rows.mean(0)).reshape(-1)

    return project
