"""The clock: the one place where the ledger, jobs, webhooks and the worker read the time or wait.

`use` replaces the clock of the process, so that tests and simulations control the time.
"""

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime


class Clock:
    """The clock of the operating system."""

    def now(self) -> datetime:
        return datetime.now(UTC)

    def monotonic(self) -> float:
        return time.monotonic()

    def wait(self, event: threading.Event, seconds: float) -> bool:
        """Wait until the event is set or the time is over; returns whether the event is set."""
        return event.wait(seconds)


_clock = Clock()


def now() -> datetime:
    return _clock.now()


def monotonic() -> float:
    return _clock.monotonic()


def wait(event: threading.Event, seconds: float) -> bool:
    return _clock.wait(event, seconds)


def sleep(seconds: float) -> None:
    _clock.wait(threading.Event(), seconds)


@contextmanager
def use(clock: Clock) -> Iterator[None]:
    """Replace the clock of this process for the duration of a block."""
    global _clock
    before, _clock = _clock, clock
    try:
        yield
    finally:
        _clock = before
