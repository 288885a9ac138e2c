"""The objective of a wide GLM: passes for the gradient alone, the descent, and the bound that a careful pass gives."""

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from core.kprior.certificate.wide_bound import distance_bound, gradient_error, has_free_bias, lacks_optimum
from core.kprior.data.leaf_rows import with_features
from core.kprior.model.families import Categorical
from core.kprior.model.predictor import Predictor
from core.kprior.model.regularizers import L2
from core.kprior.passes.cost import Cost
from core.kprior.passes.encoded import EncodedData
from core.kprior.passes.gradient import Gradient
from core.kprior.solvers.base import Progress
from core.kprior.solvers.preconditioned_lbfgs import (
    Descent,
    DescentProblem,
    Inverse,
    ValueAndGradient,
    no_projection,
    preconditioned_lbfgs,
    project_gauge,
)

CENTRE_ROWS = 1_000
"""Rows of a tree ensemble whose features give the centre, which may be any point near the rows."""


@dataclass(frozen=True)
class WideSolution:
    """Weights, the sums of a careful pass there, and a bound of the distance to the optimum."""

    w: Tensor
    seen: Gradient
    gradient: Tensor
    """(P,) gradient of the objective."""
    bound: float
    gradient_norm: float
    """Upper bound of the norm of the true gradient."""
    passes: int

    @property
    def relative(self) -> float:
        size = float(self.w.norm())
        return self.bound / size if size > 0 else (0.0 if self.bound == 0 else math.inf)


class WideObjective:
    """The objective of a wide GLM on given rows, evaluated by passes over them."""

    def __init__(self, predictor: Predictor, regularizer: L2, data: EncodedData, cost: Cost) -> None:
        self.predictor, self.regularizer, self.data, self.cost = predictor, regularizer, data, cost
        self.scale = 1.0
        """Factor of the sum over rows, if they are a sample."""
        self.centre: Tensor | None = None
        self.seen: Gradient | None = None
        """The sums of the last careful pass."""
        self.count: int | None = None

    def evaluate(self, w: Tensor, careful: bool) -> ValueAndGradient:
        """One pass."""
        free = careful and has_free_bias(self.regularizer, self.predictor.family.outputs)
        centre = self._find_centre() if free else None
        seen = self.data.accumulate(Gradient(self.predictor, w, careful, centre), careful)
        if self.count is not None and seen.count != self.count:
            raise ValueError(f"The state represents {self.count} examples, but {seen.count} were passed to certify it.")
        self.cost.backward_passes += seen.count
        self.cost.data_passes += self.scale == 1.0
        if careful:
            self.seen = seen
        gradient = self.scale * seen.gradient.reshape(-1) + self.regularizer.gradient(w)
        return ValueAndGradient(self.scale * seen.value + float(self.regularizer.value(w)), gradient, careful)

    def _find_centre(self) -> Tensor:
        if self.centre is None:
            first = next(self.data.encoded_chunks(), None)
            if first is None:
                raise ValueError("There are no examples.")
            self.centre = with_features(self.predictor, first, CENTRE_ROWS).x[:, :-1].double().mean(0)
        return self.centre

    @property
    def project(self) -> Callable[[Tensor], Tensor]:
        """Removes directions in which the optimum is zero."""
        K = self.predictor.family.outputs
        rows = self.regularizer.delta.view(K, -1)
        alike = isinstance(self.predictor.family, Categorical) and bool((rows == rows[:1]).all())
        centred = self.regularizer.linear is None and self.regularizer.toward is None
        return project_gauge(K) if alike and centred else no_projection

    def minimise(
        self,
        w: Tensor,
        inverse: Inverse,
        tolerance: float,
        *,
        start: Tensor | None = None,
        certified: bool = True,
        max_passes: int = 300,
        report: Callable[[int, float], None] | None = None,
    ) -> Descent:
        """Descend until the bound is within the tolerance; without `certified`, until the next step is."""
        penalised = self.regularizer.delta[self.regularizer.delta > 0]
        ridge = float(penalised.min()) if len(penalised) else 1e-12
        # of the bound to |gradient| / delta; usually above one if the bias is free, which saves a careful pass
        ratio = 2.0 if has_free_bias(self.regularizer, self.predictor.family.outputs) else 1.0

        def near(at: Tensor, gradient: Tensor) -> float:
            target = tolerance * float(at.norm())
            length = ratio * float(gradient.norm()) / ridge if certified else float(inverse(gradient).norm())
            return length / target if target > 0 else math.inf

        def enough(at: Tensor, evaluation: ValueAndGradient) -> bool:
            nonlocal ratio
            assert self.seen is not None
            bound = distance_bound(self.regularizer, self.seen)
            if bound <= tolerance * float(at.norm()) or lacks_optimum(self.regularizer, self.seen):
                return True  # without an optimum, no pass will give a bound
            found = bound * ridge / max(float(evaluation.gradient.norm()), 1e-300)
            ratio = max(2 * ratio, 4.0) if math.isinf(bound) else max(ratio, 1.1 * found)
            return False

        project = self.project
        return preconditioned_lbfgs(
            DescentProblem(self.evaluate, inverse, project, self.saturated),
            project(w),
            near=near,
            enough=enough if certified else None,
            start=None if start is None else start - self.regularizer.delta * (w - project(w)),
            max_passes=max_passes,
            report=report,
        )

    def saturated(self, w: Tensor, gradient: Tensor) -> bool:
        """Whether all predicted probabilities at w are so close to 0 or 1 that only the penalty matters."""
        if self.predictor.family.name not in ("bernoulli", "categorical"):
            return False
        pull = self.regularizer.gradient(w)
        return float((gradient - pull).norm()) < 0.3 * float(pull.norm())

    def measure(self, descent: Descent) -> WideSolution:
        """The bound where a descent ended; takes one more careful pass if its last pass was not careful."""
        evaluation, passes = descent.evaluation, descent.passes
        if not evaluation.careful or self.seen is None or not torch.equal(self.seen.w, descent.w):
            evaluation, passes = self.evaluate(descent.w, True), passes + 1
        assert self.seen is not None
        norm = float(evaluation.gradient.norm()) + gradient_error(self.regularizer, self.seen, evaluation.gradient)
        bound = distance_bound(self.regularizer, self.seen)
        return WideSolution(descent.w, self.seen, evaluation.gradient, bound, norm, passes)


def descent_reporter(progress: Progress) -> Callable[[int, float], None]:
    """Reports the progress of a descent by the logarithm of its remaining distance."""
    furthest = 1.0

    def report(passes: int, distance: float) -> None:
        nonlocal furthest
        if math.isfinite(distance) and distance > 0:
            furthest = max(furthest, distance)
            fraction = 1 - math.log(max(distance, 1.0) + 1e-9) / max(math.log(furthest), 1e-9) if furthest > 1 else 0.5
            progress(min(0.95, max(0.0, fraction)), f"pass {passes} over all examples")

    return report
