"""Rate limit per API key, in requests per second; off by default.

Each process counts on its own. A shared counter would make every prediction depend on the broker. Instead the limit is
divided by the number of processes, because the system distributes requests among them evenly. Each host has its own
limit.
"""

import math
import time

from core.errors import TooMany

BURST_SECONDS = 10.0
"""A key that was idle this long may send the requests of as many seconds at once."""


class RateLimit:
    """One per process. Only the event loop uses it, so it needs no lock."""

    def __init__(self, per_second: float) -> None:
        self.pause = 1 / per_second if per_second else 0.0
        self._even: dict[str, float] = {}
        """For each key, the time at which it would have sent its requests at the permitted rate."""

    def admit(self, key_id: str) -> None:
        """Count a request of a key. Raises TooMany, without counting it, above the limit."""
        if not self.pause:
            return
        moment = time.monotonic()
        even = max(self._even.get(key_id, 0.0), moment)
        ahead = even + self.pause - moment - max(BURST_SECONDS, self.pause)
        if ahead > 0:
            message = "Rate limit exceeded for this API key. Retry after the number of seconds in Retry-After."
            raise TooMany("rate_limited", message, math.ceil(ahead))
        self._even[key_id] = even + self.pause
