"""Data in shards, which define the order of summation and can be read by several processes.

Certificates, training, memory selection, encoders and the full-batch solvers call `accumulate`.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence

from torch import Tensor

from core.kprior.data.examples import Data, Examples, require_rereadable
from core.kprior.passes.accumulator import A, Accumulator, add_shards


class PartitionedData(ABC):
    """Data in shards, which several processes can read at the same time.

    A subclass defines the shards, and may override `is_distributed` and `accumulate` to let other processes read some.
    Sums over shards are merged in order, so that the result is bit-identical regardless of which process reads which.
    """

    @abstractmethod
    def shards(self) -> Sequence[Data]:
        """The data as ranges, in order. Every call returns the same shards."""

    @abstractmethod
    def rows(self, key: Tensor) -> Examples:
        """The examples with these keys, ordered by key."""

    def head(self, count: int) -> Examples | None:
        """The first rows, at most `count`; None if there are none."""
        return first_rows(iter(self), count)

    def is_distributed(self, total: Accumulator) -> bool:
        """Whether several processes would compute these sums, which is then preferable to rows cached here."""
        return False

    def accumulate(self, total: A) -> A:
        """Sum all shards in one pass.

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
    """The shards of data; data without shards is a single one."""
    return data.shards() if isinstance(data, PartitionedData) else [require_rereadable(data)]


def head_of(data: Data, count: int) -> Examples | None:
    """The first rows, at most `count`; None if there are none."""
    return data.head(count) if isinstance(data, PartitionedData) else first_rows(data, count)


def first_rows(data: Data, count: int) -> Examples | None:
    some = next((chunk for chunk in data if len(chunk)), None)
    return None if some is None else some.chunks(count)[0]


def accumulate(data: Data, total: A) -> A:
    """Sum over all data in one pass."""
    return data.accumulate(total) if isinstance(data, PartitionedData) else add_shards(shards_of(data), total)
