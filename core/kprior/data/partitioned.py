"""Data in parts: what says in which order sums over rows are added up, and lets others read some of them.

Certificates, training, memory selection, encoders and the full-batch solvers call `accumulate`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence

from torch import Tensor

from core.kprior.data.examples import Data, Examples, rereadable
from core.kprior.passes.accumulator import A, Accumulator, add_parts


class PartitionedData(ABC):
    """Data in parts."""

    @abstractmethod
    def parts(self) -> Sequence[Data]:
        """The data in order. Whoever asks gets the same parts."""

    @abstractmethod
    def rows(self, key: Tensor) -> Examples:
        """The examples with these keys, in the order of their keys."""

    def shares(self, total: Accumulator) -> bool:
        """Whether others would help to add this up."""
        return False

    def accumulate(self, total: A) -> A:
        """Add up all parts."""
        return add_parts(self.parts(), total)

    def __iter__(self) -> Iterator[Examples]:
        for part in self.parts():
            yield from part


def parts_of(data: Data) -> Sequence[Data]:
    """The parts of data; data that knows none is one."""
    return data.parts() if isinstance(data, PartitionedData) else [rereadable(data)]


def accumulate(data: Data, total: A) -> A:
    """Add up all of the data, by one pass."""
    return data.accumulate(total) if isinstance(data, PartitionedData) else add_parts(parts_of(data), total)
