"""Parameters and results of all solvers."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from torch import Tensor

from core.kprior.objective.objective import Objective
from core.kprior.passes.cost import Cost

Progress = Callable[[float, str], None]
"""Called with a fraction in 0..1 and a phrase; may raise to stop the work."""
Watch = Callable[[int, Tensor], bool]
"""Called after each step with the number of backward passes and the weights of a network; True ends the training."""


class Team(Protocol):
    """Processes that take every step of a network's training together, each on its part of the minibatch."""

    rank: int
    world: int

    def sum(self, values: Tensor) -> Tensor:
        """Sum the values of all processes; every process gets the same result."""


class SolverError(ArithmeticError):
    """No weights could be computed. The message says why, and what the user can do.

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
    The objective is not finite at the initial weights. Check the examples for extreme values.
    """


@dataclass(frozen=True)
class Training:
    """Hyperparameters for networks. GLMs have a single optimum and use only the tolerance.

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
    """None for all rows in every step."""
    max_epochs: int = 100
    patience: int | None = 5
    """Rounds of about 20 steps without progress before the learning rate falls to zero; None to wait for the end."""
    seed: int = 0
    budget: int = 24_000
    """Gradients of rows that an adaptation with sampled rows may compute, independent of the number of examples. It is
    increased by three per added example and doubled for a new architecture; with fewer than 3 000 examples it is eight
    epochs, but at least 8 000."""
    tolerance: float = 1e-12
    """Newton stops when half the squared decrement, a bound on the possible gain, is this fraction of the value."""


@dataclass(frozen=True)
class Solution:
    """The result of a solver."""

    w: Tensor
    converged: bool
    hessian: Tensor | None = None
    """The Hessian at w, or one quadratic step before; only Newton's method provides it."""


Solve = Callable[[Objective, Tensor, Training, Cost, Progress | None, Watch | None], Solution]
"""The signature of `solve`."""
