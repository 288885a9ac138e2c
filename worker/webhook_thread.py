"""Sends webhook deliveries, in a thread of the scheduler so that slow receivers do not delay its ticks.

Not in a worker, because long jobs can keep all workers busy. Any number of senders may run.
"""

import threading
from concurrent.futures import Future

import structlog

from core import clock
from core.database import Database
from core.settings import Settings
from core.webhooks import deliveries

log = structlog.get_logger("scheduler")

POLL_SECONDS = 1.0
"""Interval between checks for due deliveries."""


class WebhookSender(threading.Thread):
    """Sends due deliveries until the event `over` is set."""

    def __init__(self, settings: Settings, database: Database, over: threading.Event) -> None:
        super().__init__(name="webhook-sender", daemon=True)
        self.settings, self.database, self.over = settings, database, over

    def run(self) -> None:
        sender = deliveries.Sender(self.database, self.settings.secret, self.settings.private_webhooks)
        while not clock.wait(self.over, POLL_SECONDS):
            try:
                for future in sender.start_due():
                    future.add_done_callback(log_failure)
            except Exception as error:  # unsent deliveries stay due
                log.warning("webhook_delivery_failed", exc_info=error)
        sender.close()


def log_failure(future: Future[int]) -> None:
    """Log an error that kept deliveries from being attempted or recorded; they stay due."""
    if not future.cancelled() and (error := future.exception()) is not None:
        log.warning("webhook_delivery_failed", exc_info=error)
