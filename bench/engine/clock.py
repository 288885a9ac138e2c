"""CPU seconds of one thread, the unit of every comparison."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from threadpoolctl import threadpool_limits


@dataclass
class Spent:
    """The time that a block of code took; set when it ends."""

    cpu: float = 0.0
    wall: float = 0.0


@contextmanager
def timed() -> Iterator[Spent]:
    """Time a block in CPU seconds of this process and in wall-clock seconds."""
    spent, cpu, wall = Spent(), time.process_time(), time.perf_counter()
    try:
        yield spent
    finally:
        spent.cpu, spent.wall = time.process_time() - cpu, time.perf_counter() - wall


@contextmanager
def one_thread() -> Iterator[None]:
    """NumPy, scikit-learn and torch use one thread each."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        with threadpool_limits(1):
            yield
    finally:
        torch.set_num_threads(before)
