"""Whether a Ray cluster still responds, determined from the first bytes that its server sends."""

import os
import socket
import time
from urllib.parse import urlsplit

DEFAULT_PORT = 6379
"""Ray's own default."""
SETTINGS_FRAME = b"\x04"
"""The type of the first frame that an HTTP/2 server sends."""
PROBE_SECONDS = 2.0
"""Interval between probes of the cluster, and timeout of each probe."""


class Silence:
    """Measures for how long a cluster has made no progress with a pass."""

    def __init__(self) -> None:
        self.reached, self.since = 0, time.monotonic()

    def seconds(self, reached: int) -> float:
        """Seconds since the number of finished shards last grew; `reached` is the current number."""
        now = time.monotonic()
        if reached > self.reached:
            self.reached, self.since = reached, now
        return now - self.since


def answers_at(address: str) -> bool:
    """Whether Ray listens at an address and is not stuck: its server sends first, unless it waits for TLS."""
    place = urlsplit(address if "://" in address else f"ray://{address}")
    try:
        with socket.create_connection(
            (place.hostname or "", place.port or DEFAULT_PORT), timeout=PROBE_SECONDS
        ) as server:
            return os.environ.get("RAY_USE_TLS") == "1" or server.recv(9)[3:4] == SETTINGS_FRAME
    except OSError:
        return False
