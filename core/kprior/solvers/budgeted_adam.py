"""Adam for networks with a fixed number of steps, over the last of which the learning rate falls to zero."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from core.kprior.model.regularizers import L2
from core.kprior.objective.objective import Objective
from core.kprior.objective.terms import Batch
from core.kprior.passes.cost import Cost
from core.kprior.solvers.adam import require_finite
from core.kprior.solvers.base import Progress, Solution, Training, Watch
from core.kprior.solvers.fused_adam import FusedAdam

LEARNING_RATE = 2e-3
BATCH_SIZE = 64
COOLING_FRACTION = 0.7
"""Fraction of the steps, at the end, in which the learning rate falls to zero."""
WARM_VISITS, WARM_EPOCHS = 48_000, 8
"""Rows that a warm descent needed on 54 000 images, and the maximum number of epochs with few rows."""

StepLoss = Callable[[Tensor], tuple[Tensor, int]]
"""Maps weights to the mean loss of the next minibatch and the number of rows whose gradients it needs."""


@dataclass(frozen=True)
class Cooling:
    """A learning rate that is constant at first and then falls linearly to zero."""

    rate: float = LEARNING_RATE
    fraction: float = COOLING_FRACTION
    """Fraction of the steps in which it falls."""


@dataclass(frozen=True)
class MeanPenalty:
    """R(w) / count: the regularizer next to a mean loss."""

    regularizer: L2
    count: int
    """Number of rows that the mean loss represents."""


def descend(
    start: Tensor,
    step_loss: StepLoss,
    steps: int,
    cost: Cost,
    *,
    cooling: Cooling = Cooling(),  # noqa: B008 - immutable
    penalty: MeanPenalty | None = None,
    progress: Callable[[float], None] | None = None,
    watch: Watch | None = None,
) -> Solution:
    """Take `steps` steps on step_loss(w) plus the penalty, from `start` (P,).

    `step_loss` returns the mean loss of the next minibatch and the number of rows whose gradients it needs. `progress`
    is called every 16 steps with the fraction of the steps that are done. `watch` is called after each step; if it
    returns True, the descent ends and has not converged.
    """
    w = start.clone().requires_grad_()
    optimizer = FusedAdam(w, cooling.rate, (0.9, 0.99))
    for step in range(steps):
        optimizer.rate = cooling.rate * min(1.0, (1 - step / steps) / cooling.fraction)
        loss, rows = step_loss(w)
        w.grad = None
        loss.backward()
        if penalty is not None and w.grad is not None:
            w.grad += penalty.regularizer.gradient(w.detach()) / penalty.count
        optimizer.step()
        cost.backward_passes += rows
        if progress is not None and step % 16 == 15:
            progress((step + 1) / steps)
        if watch is not None and watch(cost.backward_passes, w.detach()):
            return Solution(require_finite(w.detach().clone()), False)
    return Solution(require_finite(w.detach().clone()), True)


def warm_visits(count: int) -> int:
    """Number of rows that a warm descent visits: each row at least once.

    >>> warm_visits(1_000), warm_visits(54_000), warm_visits(10**6)
    (8000, 54000, 1000000)
    """
    return max(count, min(WARM_VISITS, WARM_EPOCHS * count))


def descend_warm(
    objective: Objective,
    start: Tensor,
    training: Training,
    cost: Cost,
    progress: Progress | None = None,
    watch: Watch | None = None,
) -> Solution:
    """Train a network on all rows from weights that are nearly optimal."""
    [term], count = objective.terms, objective.terms[0].rows()
    steps = max(1, warm_visits(count) // BATCH_SIZE)
    generator = torch.Generator().manual_seed(training.seed)

    def batches() -> Iterator[Batch]:
        while True:
            for batch, _ in term.minibatches(max(1, round(count / BATCH_SIZE)), BATCH_SIZE, generator):
                yield batch
            cost.data_passes += term.past

    stream = batches()

    def step_loss(w: Tensor) -> tuple[Tensor, int]:
        z, targets, weight = next(stream)
        loss = objective.predictor.family.loss(targets, objective.predictor.outputs_of_encoded(w, z, training=True))
        return (loss if weight is None else loss * weight).mean(), len(z)

    def report(fraction: float) -> None:
        if progress is not None:
            progress(fraction, f"warm descent: {fraction:.0%} of {steps * BATCH_SIZE} examples")

    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(training.seed)  # dropout draws from the global generator
        penalty = MeanPenalty(L2(objective.delta, objective.linear), count)
        return descend(start, step_loss, steps, cost, penalty=penalty, progress=report, watch=watch)
