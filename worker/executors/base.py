"""The interface between jobs and where their long work is computed: adding up a pass, and training a network.

`worker.reading` asks for the first and `worker.versions.builder` for the second; neither knows where it is computed.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING

from core.kprior.passes.accumulator import A, Accumulator, add_shards
from core.kprior.solvers import Solve, solve

if TYPE_CHECKING:
    from worker.reading import Reading
    from worker.versions.snapshot import ModelSnapshot


class Executor(ABC):
    """Computes what a job asks for. The result is the same wherever that is."""

    @abstractmethod
    def close(self) -> None:
        """Let go, after a job, of what is not needed until the next one."""

    @abstractmethod
    def is_distributed(self, reading: Reading, total: Accumulator) -> bool:
        """Whether several processes would add this up: then it is worth more than rows that are kept here."""

    @abstractmethod
    def reduce(self, reading: Reading, total: A) -> A:
        """Add up all shards of a pass into an empty accumulator, which is returned.

        Each shard is added up from zero, and they are merged in the ledger's order, so that the bits are those of one
        process.
        """

    @abstractmethod
    def solver_for(self, snapshot: ModelSnapshot) -> Solve:
        """What minimises the objective of all of a model's examples, as `solve` does: it trains networks."""


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
