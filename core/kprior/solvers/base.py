"""What every solver takes and gives."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from torch import Tensor

from core.kprior.cost import Cost
from core.kprior.objective.objective import Objective

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
    """A solve that cannot give weights: the message says why in words a person can use.

    Examples
    --------
    >>> import torch
    >>> from core.kprior import Examples, SolverError, train
    >>> spec = {"input": {"kind": "vector", "dim": 1}, "target": {"kind": "number"}}
    >>> spec |= {"architecture": {"kind": "linear"}, "regularizer": {"kind": "l2", "delta": 1.0}}
    >>> broken = Examples(torch.arange(2), torch.tensor([[1.0], [torch.inf]]), torch.ones(2, 1))
    >>> try:
    ...     train(spec, [broken])
    ... except SolverError as error:
    ...     print(error)
    the objective is not finite at the start: check the examples for extreme values
    """


@dataclass(frozen=True)
class Training:
    """How networks are trained. GLMs have one optimum and need none of this but the tolerance.

    Examples
    --------
    >>> from dataclasses import replace
    >>> from core.kprior import Training
    >>> training = Training(max_epochs=40, batch_size=64)
    >>> training.learning_rate, replace(training, seed=1).seed
    (0.003, 1)
    """

    learning_rate: float = 0.003
    batch_size: int | None = 256
    """None: all rows in every step."""
    max_epochs: int = 100
    patience: int | None = 5
    """Rounds of about 20 steps without progress before the learning rate falls to zero; None: at the end only."""
    seed: int = 0
    warm_start: bool = True
    budget: int = 24_000
    """Rows that an adaptation with drawn rows may differentiate, whatever the number of examples; three more for each
    added one, twice as many for a new architecture; of fewer than 3 000 examples eight epochs, but 8 000 at least."""
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
