"""The interface for long computations of jobs: summing a pass, and training a network.

`worker.example_reading` uses the first and `worker.versions.builder` the second; neither knows where it is computed.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING

from core.kprior.passes.accumulator import A, Accumulator, add_shards
from core.kprior.solvers import Solve, solve

if TYPE_CHECKING:
    from worker.example_reading import Reading
    from worker.versions.snapshot import ModelSnapshot


class Executor(ABC):
    """Runs computations for a job. The result does not depend on where they run."""

    @abstractmethod
    def close(self) -> None:
        """Release, after a job, resources that are not needed until the next one."""

    @abstractmethod
    def is_distributed(self, reading: Reading, total: Accumulator) -> bool:
        """Whether several processes would compute this sum: faster than this process, even with rows in memory."""

    @abstractmethod
    def reduce(self, reading: Reading, total: A) -> A:
        """Sum all shards of a pass into an empty accumulator, which is returned.

        Each shard is summed from zero, and shards are merged in the order of the ledger, so that the result is
        bitwise the same as in one process.
        """

    @abstractmethod
    def solver_for(self, snapshot: ModelSnapshot) -> Solve:
        """A function like `solve` that minimises the objective over all examples of a model; it trains networks."""


class InProcess(Executor):
    """Computes everything in the worker's own process."""

    def close(self) -> None:
        pass

    def is_distributed(self, reading: Reading, total: Accumulator) -> bool:
        return False

    def reduce(self, reading: Reading, total: A) -> A:
        return add_shards(reading.shards(), total)

    def solver_for(self, snapshot: ModelSnapshot) -> Solve:
        return solve
