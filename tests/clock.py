"""A clock that stands still until a test advances it."""

from __future__ import annotations

import threading
from datetime import UTC, datetime, timedelta

from core.clock import Clock


class VirtualClock(Clock):
    """Waiting returns at once and advances the time."""

    def __init__(self, moment: datetime | None = None) -> None:
        self.moment, self.elapsed = moment or datetime.now(UTC), 0.0

    def now(self) -> datetime:
        return self.moment + timedelta(seconds=self.elapsed)

    def monotonic(self) -> float:
        return self.elapsed

    def advance(self, seconds: float) -> None:
        self.elapsed += seconds

    def wait(self, event: threading.Event, seconds: float) -> bool:
        if not event.is_set():
            self.advance(seconds)
        return event.is_set()
