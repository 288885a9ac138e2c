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

    def __init__(self, per_second: float, processes: int = 1) -> None:
        self.processes = processes
        self.per_second = per_second
        self._even: dict[str, float] = {}
        """For each key, the time at which it would have sent its requests at the permitted rate."""

    def admit(self, key_id: str, own_limit: float | None = None) -> None:
        """Count a request of a key. Raises TooMany, without counting it, above the limit: the key's own, or else that
        of all keys.
        """
        per_second = self.per_second if own_limit is None else own_limit
        if not per_second:
            return
        pause = self.processes / per_second
        moment = time.monotonic()
        even = max(self._even.get(key_id, 0.0), moment)
        ahead = (even - moment) + (pause - max(BURST_SECONDS, pause))  # exactly 0 for the first of rare requests
        if ahead > 0:
            message = "Rate limit exceeded for this API key. Retry after the number of seconds in Retry-After."
            raise TooMany("rate_limited", message, math.ceil(ahead))
        self._even[key_id] = even + pause
