"""Waiting for what goes on without us: jobs and erasures."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from typing import TypeVar

from amend.responses import Erasure, Job
from amend.sansio import Flow

T = TypeVar("T", Job, Erasure)


def wait_until_ended(
    poll: Callable[[float], Flow[T]], every: float, progress: Callable[[T], object] | None, timeout: float | None
) -> Flow[T]:
    """What ``poll`` finds, once it has ended. ``poll`` is given the seconds that it may take to find something new."""
    end = math.inf if timeout is None else time.monotonic() + timeout
    found = yield from poll(0)
    while True:
        if progress is not None:
            progress(found)
        if found.ended:
            return found
        left = end - time.monotonic()
        if left <= 0:
            raise TimeoutError(f"{type(found).__name__.lower()} {found.id} is still {found.state}")
        found = yield from poll(min(every, left))


def id_of(thing: Job | Erasure | str) -> str:
    return thing if isinstance(thing, str) else thing.id
