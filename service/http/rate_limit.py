"""How many requests a key may send in a second; off unless set.

Counted in this process alone. A count that all processes share would have every prediction wait for a broker that it
does without today, and fail with it. The processes of one service share the limit evenly instead, as the system shares
requests among them; every further host has a limit of its own.
"""

from __future__ import annotations

import math
import time

from core.errors import TooMany

BURST_SECONDS = 10.0
"""Seconds whose requests may come at once, after as long without any."""


class RateLimit:
    """One per process. Only the event loop asks, so nothing need be locked."""

    def __init__(self, per_second: float) -> None:
        self.pause = 1 / per_second if per_second else 0.0
        self._even: dict[str, float] = {}
        """When a key would have sent all that it did, had it kept to the pause. There are as many as keys."""

    def admit(self, key_id: str) -> None:
        """Count a request of a key; TooMany, uncounted, if there were too many."""
        if not self.pause:
            return
        moment = time.monotonic()
        even = max(self._even.get(key_id, 0.0), moment)
        ahead = even + self.pause - moment - max(BURST_SECONDS, self.pause)
        if ahead > 0:
            message = "This key has sent too many requests; Retry-After says in how many seconds the next may come."
            raise TooMany("rate_limited", message, math.ceil(ahead))
        self._even[key_id] = even + self.pause
