"""Data in shards: what says in which order sums over rows are added up, and lets others read some of them.

Certificates, training, memory selection, encoders and the full-batch solvers call `accumulate`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence

from torch import Tensor

from core.kprior.data.examples import Data, Examples, require_rereadable
from core.kprior.passes.accumulator import A, Accumulator, add_shards


class PartitionedData(ABC):
    """Data in shards, which several processes can read at the same time.

    A subclass says what the shards are, and may override `is_distributed` and `accumulate` to have others read some.
    Sums over shards are merged in their order, so that the result has the same bits whoever read which.
    """

    @abstractmethod
    def shards(self) -> Sequence[Data]:
        """The data in order, as ranges of it. Whoever asks gets the same shards."""

    @abstractmethod
    def rows(self, key: Tensor) -> Examples:
        """The examples with these keys, in the order of their keys."""

    def is_distributed(self, total: Accumulator) -> bool:
        """Whether several processes would add this up: then it is worth more than rows that are kept here."""
        return False

    def accumulate(self, total: A) -> A:
        """Add up all shards by one pass.

        Parameters
        ----------
        total
            An empty accumulator, which is filled and returned.
        """
        return add_shards(self.shards(), total)

    def __iter__(self) -> Iterator[Examples]:
        for shard in self.shards():
            yield from shard


def shards_of(data: Data) -> Sequence[Data]:
    """The shards of data; data that knows none is one."""
    return data.shards() if isinstance(data, PartitionedData) else [require_rereadable(data)]


def accumulate(data: Data, total: A) -> A:
    """Add up all of the data, by one pass."""
    return data.accumulate(total) if isinstance(data, PartitionedData) else add_shards(shards_of(data), total)
