"""Adam for a number of steps that is known beforehand, with a learning rate that cools over them: networks."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch
from torch import Tensor

from core.kprior.cost import Cost
from core.kprior.model.regularizers import L2
from core.kprior.objective.objective import Objective
from core.kprior.objective.terms import Batch
from core.kprior.solvers.adam import require_finite
from core.kprior.solvers.base import Progress, Solution, Training, Watch

LEARNING_RATE = 2e-3
BATCH_SIZE = 64
COOLING_FRACTION = 0.7
"""The fraction of the steps, the last ones, in which the learning rate falls to zero."""
WARM_VISITS, WARM_EPOCHS = 48_000, 8
"""What a warm descent needed on 54 000 images; and no more than so many epochs of few rows."""

StepLoss = Callable[[Tensor], tuple[Tensor, int]]
"""From weights to the loss of the next minibatch, a mean, and the number of rows that are differentiated."""


def descend(
    start: Tensor,
    step_loss: StepLoss,
    steps: int,
    cost: Cost,
    *,
    rate: float = LEARNING_RATE,
    cooling: float = COOLING_FRACTION,
    regularizer: L2 | None = None,
    count: int = 1,
    progress: Callable[[float], None] | None = None,
    watch: Watch | None = None,
) -> Solution:
    """Take `steps` steps on step_loss(w) + R(w) / count.

    Parameters
    ----------
    start
        (P,) weights to begin with.
    step_loss
        The loss of the next minibatch, a mean, and how many rows it differentiates.
    steps
        Known beforehand: the learning rate falls to zero over the last of them.
    cost
        Counts the rows that are differentiated.
    rate, cooling
        The learning rate, and the share of the steps in which it falls.
    regularizer, count
        R, and the number of rows that the mean loss stands for.
    progress
        Called with the share of the steps that are done, now and then.
    watch
        Called after each step; True ends the descent.

    Returns
    -------
    Solution
        Not converged if it was told to stop.
    """
    w = start.clone().requires_grad_()
    optimizer = torch.optim.Adam([w], lr=rate, betas=(0.9, 0.99), fused=True)
    for step in range(steps):
        optimizer.param_groups[0]["lr"] = rate * min(1.0, (1 - step / steps) / cooling)
        loss, rows = step_loss(w)
        optimizer.zero_grad()
        loss.backward()
        if regularizer is not None and w.grad is not None:
            w.grad += regularizer.gradient(w.detach()) / count
        optimizer.step()
        cost.backward_passes += rows
        if progress is not None and step % 16 == 15:
            progress((step + 1) / steps)
        if watch is not None and watch(cost.backward_passes, w.detach()):
            return Solution(require_finite(w.detach().clone()), False)
    return Solution(require_finite(w.detach().clone()), True)


def warm_visits(count: int) -> int:
    """Rows that a warm descent visits: all of them once at least.

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
    """Go on from weights that are nearly right, on all rows: a solver of networks."""
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
        regularizer = L2(objective.delta, objective.linear)
        return descend(
            start, step_loss, steps, cost, regularizer=regularizer, count=count, progress=report, watch=watch
        )
