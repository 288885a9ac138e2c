"""Whether a Ray cluster still answers. Knows nothing of Ray but how its server begins to speak."""

from __future__ import annotations

import os
import socket
import time
from urllib.parse import urlsplit

DEFAULT_PORT = 6379
"""Ray's own default."""
SETTINGS_FRAME = b"\x04"
"""The kind of the frame with which a server of HTTP/2 begins."""
PROBE_SECONDS = 2.0
"""Seconds between two questions whether the cluster is there, and for which an answer is waited for."""


class Silence:
    """For how long a cluster has brought nothing new of a pass."""

    def __init__(self) -> None:
        self.reached, self.since = 0, time.monotonic()

    def seconds(self, reached: int) -> float:
        """With so many shards added up, here or there."""
        now = time.monotonic()
        if reached > self.reached:
            self.reached, self.since = reached, now
        return now - self.since


def answers_at(address: str) -> bool:
    """Whether Ray listens there, and is not stuck: its server speaks first, unless it waits for TLS."""
    place = urlsplit(address if "://" in address else f"ray://{address}")
    try:
        with socket.create_connection(
            (place.hostname or "", place.port or DEFAULT_PORT), timeout=PROBE_SECONDS
        ) as server:
            return os.environ.get("RAY_USE_TLS") == "1" or server.recv(9)[3:4] == SETTINGS_FRAME
    except OSError:
        return False
