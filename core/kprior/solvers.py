"""Solvers: Newton for GLMs while P allows, L-BFGS beyond, Adam for networks.

All take an `Objective` and a start, count their cost, and never hand back weights that are not finite.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from core.kprior.cost import Cost
from core.kprior.curvature import FULL_LIMIT, Full, cholesky
from core.kprior.objective import Batch, Objective
from core.kprior.shifts import shift_directions, without_shift

Progress = Callable[[float, str], None]
"""Called with a share of 0..1 and a phrase; may raise to stop the work."""
Watch = Callable[[int, Tensor], bool]
"""Called with the backward passes so far and a network's weights after each step; True ends the solve."""


class Team(Protocol):
    """Processes that take every step of a network's training together, each on its share of the minibatch."""

    rank: int
    world: int

    def sum(self, values: Tensor) -> Tensor:
        """The sum of what all of them give, the same in each."""


class SolverError(ArithmeticError):
    """A solve that cannot give weights: the message says why in words a person can use."""


@dataclass(frozen=True)
class Training:
    """How networks are trained. GLMs have one optimum and need none of this but the tolerance."""

    learning_rate: float = 0.003
    batch_size: int | None = 256
    """None: all rows in every step."""
    max_epochs: int = 100
    patience: int | None = 5
    """Rounds of about 20 steps without progress before the learning rate falls to zero; None: at the end only."""
    seed: int = 0
    warm_start: bool = True
    tolerance: float = 1e-12
    """Newton stops when half the squared decrement, a bound on what is left to gain, is this share of the value."""


@dataclass(frozen=True)
class Solution:
    """Where a solver stopped."""

    w: Tensor
    converged: bool
    hessian: Tensor | None = None
    """The Hessian at (or one quadratic step before) w, where Newton knows it."""


Solve = Callable[[Objective, Tensor, Training, Cost, Progress | None, Watch | None], Solution]
"""What `solve` is: from an objective and a start to where it stopped."""


def solve(
    objective: Objective,
    start: Tensor,
    training: Training,
    cost: Cost,
    progress: Progress | None = None,
    watch: Watch | None = None,
) -> Solution:
    """The minimiser of an objective, by the solver that fits it."""
    predictor = objective.predictor
    if not predictor.linear:
        return adam(objective, start, training, cost, progress, watch)
    if predictor.size <= FULL_LIMIT and (objective.curvature is None or isinstance(objective.curvature, Full)):
        try:
            return newton(objective, start, training, cost, progress)
        except SolverError:
            if not bool(start.any()):
                raise
            # a model that is far too sure has no curvature left to start from; at zero there is all of it
            return newton(objective, torch.zeros_like(start), training, cost, progress)
    return lbfgs(objective, start, cost, progress)


def newton(
    objective: Objective, start: Tensor, training: Training, cost: Cost, progress: Progress | None = None
) -> Solution:
    """Newton's method with backtracking; one pass over the terms per step."""
    shifts = shift_directions(objective.predictor, objective.delta)
    w = without_shift(start, shifts)
    value, gradient, H = objective.evaluate(w, cost, hessian=True)
    if not math.isfinite(value):
        w = torch.zeros_like(w)  # counts overflow far from where they belong, but never at zero
        value, gradient, H = objective.evaluate(w, cost, hessian=True)
    if not math.isfinite(value) or not bool(gradient.isfinite().all()):
        raise SolverError("the objective is not finite at the start: check the examples for extreme values")
    for iteration in range(100):
        assert H is not None
        if shifts is not None:
            H = H + H.diagonal().mean() * shifts @ shifts.T
        try:
            factor = cholesky(H)
        except ArithmeticError as error:
            raise SolverError(
                "the objective is not convex where it should be: the memory's weights are too large"
            ) from error
        step = -torch.cholesky_solve(gradient[:, None], factor)[:, 0]
        decrement = -float(gradient @ step)
        if decrement / 2 <= training.tolerance * (1 + abs(value)):
            # the step is taken all the same: it costs no pass and squares the error
            return Solution(w + step, True, H)
        t, accepted = 1.0, False
        for _ in range(40):
            new_value, new_gradient, new_H = objective.evaluate(w + t * step, cost, hessian=True)
            if new_value <= value - 1e-4 * t * decrement + 1e-12 * abs(value) and bool(new_gradient.isfinite().all()):
                accepted = True
                break
            t /= 2
        if not accepted:
            raise SolverError("Newton's method found no descent: the problem is too ill-conditioned")
        w, value, gradient, H = w + t * step, new_value, new_gradient, new_H
        if progress:
            progress(min(0.95, (iteration + 1) / 12), f"Newton step {iteration + 1}")
    raise SolverError("no minimum was found in 100 Newton steps: nothing holds the weights where they are")


def lbfgs(objective: Objective, start: Tensor, cost: Cost, progress: Progress | None = None) -> Solution:
    """L-BFGS with a strong Wolfe line search, for GLMs whose Hessian is too large."""
    w = start.clone().requires_grad_()
    value, gradient, _ = objective.evaluate(start, cost)
    tolerance = 1e-8 * (1 + abs(value))
    optimizer = torch.optim.LBFGS(
        [w],
        max_iter=50,
        history_size=50,
        tolerance_grad=tolerance,
        tolerance_change=1e-15 * (1 + float(start.norm())),
        line_search_fn="strong_wolfe",
    )

    def closure() -> float:
        total, w.grad, _ = objective.evaluate(w.detach(), cost)
        return total

    last = value
    for round_ in range(40):
        optimizer.step(closure)
        value, gradient, _ = objective.evaluate(w.detach(), cost)
        if not bool(w.isfinite().all()) or not bool(gradient.isfinite().all()):
            raise SolverError("the objective is not finite: check the examples for extreme values")
        if float(gradient.abs().max()) <= tolerance:
            return Solution(w.detach(), True)
        if value >= last - 1e-14 * abs(last):
            break
        last = value
        if progress:
            progress((round_ + 1) / 40, f"L-BFGS round {round_ + 1}")
    return Solution(w.detach(), float(gradient.norm()) <= 1e-4 * (1 + abs(value)))


def adam(
    objective: Objective,
    start: Tensor,
    training: Training,
    cost: Cost,
    progress: Progress | None = None,
    watch: Watch | None = None,
    team: Team | None = None,
) -> Solution:
    """Adam on minibatches of all terms at once; the learning rate falls when the objective stops falling.

    The members of a team draw the same minibatches and add up the gradients of their shares: the steps are those of
    one process, but for rounding and for what dropout draws.
    """
    predictor = objective.predictor
    rank, world = (0, 1) if team is None else (team.rank, team.world)
    if training.batch_size is not None and training.batch_size < 1:
        raise ValueError("batch_size must be at least 1, or None for all rows")
    w = start.clone().requires_grad_()
    terms = [term for term in objective.terms if term.rows()]
    releases = [(z, c) for z, c in objective.released if len(z)]
    rows = sum(term.stands_for() for term in terms) + sum(len(z) for z, _ in releases)
    steps = 1 if training.batch_size is None else max(1, round(rows / training.batch_size))
    optimizer = torch.optim.Adam([w], lr=training.learning_rate)
    generator = torch.Generator().manual_seed(training.seed)
    schedule = Schedule(training, steps)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(training.seed + rank)  # dropout draws from the global generator
        for epoch in range(training.max_epochs):
            for group in optimizer.param_groups:
                group["lr"] = schedule.learning_rate(epoch)
            total = 0.0
            streams = [term.minibatches(steps, training.batch_size, generator) for term in terms]
            released = [released_batches(z, c, steps, generator) for z, c in releases]
            for _ in range(steps):
                loss = objective.smooth_part(w) / world
                for term, stream in zip(terms, streams, strict=True):
                    drawn = next(stream, None)
                    if drawn is None:
                        continue
                    batch, factor = drawn
                    cost.backward_passes += len(batch[0])
                    cost.forward_passes += len(batch[0]) if term.teacher is not None else 0
                    z, targets, weight = share_of(batch, rank, world)
                    f = predictor.outputs_of_encoded(w, z, training=True)
                    loss = loss + factor * term.loss(f, targets, weight)
                for part in released:
                    z, coefficient, factor = next(part)
                    cost.backward_passes += len(z)
                    f = predictor.outputs_of_encoded(w, z[rank::world], training=True)
                    loss = loss + factor * (f * coefficient[rank::world]).sum()
                optimizer.zero_grad()
                loss.backward()
                value = loss.detach()
                if team is not None and w.grad is not None:
                    together = team.sum(torch.cat([w.grad, value[None]]))
                    w.grad, value = together[:-1], together[-1]
                optimizer.step()
                total += float(value)
                if watch and watch(cost.backward_passes, w.detach()):
                    return Solution(finite(w.detach().clone()), False)
            cost.data_passes += sum(term.past for term in terms)
            finite(torch.cat([w.detach(), w.detach().new_tensor([total])]))
            if progress:
                progress((epoch + 1) / training.max_epochs, f"epoch {epoch + 1} of at most {training.max_epochs}")
            if schedule.over(epoch, total / steps):
                break
    return Solution(w.detach().clone(), schedule.stalled or training.patience is None)


def share_of(batch: Batch, rank: int, world: int) -> Batch:
    """What one member of a team takes of a minibatch."""
    if world == 1:
        return batch
    z, targets, weight = batch
    return z[rank::world], targets[rank::world], None if weight is None else weight[rank::world]


def finite(values: Tensor) -> Tensor:
    """The values, if all are finite."""
    if not bool(values.isfinite().all()):
        raise SolverError("training diverged: nothing finite is left; lower the learning rate or check the examples")
    return values


def released_batches(
    z: Tensor, coefficient: Tensor, steps: int, generator: torch.Generator
) -> Iterator[tuple[Tensor, Tensor, float]]:
    """Minibatches of removed examples, as `Term.minibatches` gives them."""
    n = len(z)
    order = torch.randperm(n, generator=generator)
    for part in order.tensor_split(steps) if steps <= n else (order[i % n, None] for i in range(steps)):
        yield z[part], coefficient[part], n / len(part)


class Schedule:
    """A constant learning rate while the objective falls, then a straight line down to zero, then the end.

    The descent takes a tenth of what came before: Adam at a constant rate ends wherever its noise has just taken it.
    """

    def __init__(self, training: Training, steps: int) -> None:
        self.rate, self.patience = training.learning_rate, training.patience
        self.round = max(1, 20 // steps)
        """Epochs whose mean objective is compared: minibatch noise should not end a solve."""
        self.descent = math.ceil(training.max_epochs / 1.1)
        """The epoch in which the rate begins to fall; earlier if progress ends before."""
        self.end = training.max_epochs
        self.stalled = False
        self._sum, self._seen, self._best, self._waited = 0.0, 0, math.inf, 0

    def learning_rate(self, epoch: int) -> float:
        """The rate in an epoch, counted from zero."""
        if epoch < self.descent:
            return self.rate
        return self.rate * (self.end - epoch) / (self.end - self.descent + 1)

    def over(self, epoch: int, value: float) -> bool:
        """Take an epoch's mean objective; True after the last one."""
        if self.patience is not None and epoch < self.descent and self._stalls(value):
            self.stalled = True
            self.descent = epoch + 1
            self.end = min(self.end, self.descent + math.ceil(0.1 * self.descent))
        return epoch + 1 >= self.end

    def _stalls(self, value: float) -> bool:
        self._sum, self._seen = self._sum + value, self._seen + 1
        if self._seen < self.round:
            return False
        mean, self._sum, self._seen = self._sum / self._seen, 0.0, 0
        if mean < self._best - 1e-3 * abs(self._best) or self._best == math.inf:
            self._best, self._waited = mean, 0
        else:
            self._best, self._waited = min(self._best, mean), self._waited + 1
        return self.patience is not None and self._waited >= self.patience
