"""Requests time stamps for new heads of the register, in a thread of the scheduler so that no tick waits for them."""

import threading

import structlog

from core import clock
from core.database import Database
from core.register.timestamps import stamp_newest_head
from core.settings import Settings

log = structlog.get_logger("scheduler")

MIN_INTERVAL_SECONDS = 60.0
"""Time between two requests, also after a failure: authorities limit the number of requests."""


class TimestampRequester(threading.Thread):
    """Has new heads time-stamped until the event `over` is set."""

    def __init__(self, settings: Settings, database: Database, over: threading.Event) -> None:
        super().__init__(name="timestamp-requester", daemon=True)
        self.settings, self.database, self.over = settings, database, over

    def run(self) -> None:
        while not clock.wait(self.over, self.request()):
            pass

    def request(self) -> float:
        """Request a time stamp if there is a new head; returns the seconds to wait before the next request."""
        try:
            stamped = stamp_newest_head(self.database, self.settings.tsa_url)
        except Exception as error:
            log.warning("timestamp_request_failed", exc_info=error)
            return MIN_INTERVAL_SECONDS
        return MIN_INTERVAL_SECONDS if stamped else self.settings.tick_seconds
