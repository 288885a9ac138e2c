"""The cost of a computation, which versions, comparisons and benchmarks report."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass


@dataclass
class Cost:
    """Counters that solvers and passes increment.

    Examples
    --------
    >>> from core.kprior import Cost
    >>> Cost(data_passes=1, backward_passes=100) + Cost(backward_passes=20)
    Cost(data_passes=1, backward_passes=120, forward_passes=0, seconds=0.0)
    """

    data_passes: int = 0
    """Passes over past data (memory, added and removed examples are not past data)."""
    backward_passes: int = 0
    """Gradients of single examples, memory and mixed examples included."""
    forward_passes: int = 0
    """Outputs of single examples without a gradient."""
    seconds: float = 0.0

    @contextmanager
    def timed(self) -> Iterator[Cost]:
        """Add the seconds spent in the block."""
        start = time.perf_counter()
        try:
            yield self
        finally:
            self.seconds += time.perf_counter() - start

    def __add__(self, other: Cost) -> Cost:
        return Cost(
            self.data_passes + other.data_passes,
            self.backward_passes + other.backward_passes,
            self.forward_passes + other.forward_passes,
            self.seconds + other.seconds,
        )
