"""Sending deliveries to webhooks, in a thread of the scheduler: receivers that hang must not hold up its ticks.

Not in a worker, since long jobs can keep all workers busy. Any number of senders may run.
"""

from __future__ import annotations

import threading

import structlog

from core.database import Database
from core.settings import Settings
from core.webhooks import deliveries

log = structlog.get_logger("scheduler")

POLL_SECONDS = 1.0
"""Between two checks for due deliveries."""


class WebhookSender(threading.Thread):
    """Sends due deliveries until the event `over` is set."""

    def __init__(self, settings: Settings, database: Database, over: threading.Event) -> None:
        super().__init__(name="webhook-sender", daemon=True)
        self.settings, self.database, self.over = settings, database, over

    def run(self) -> None:
        while not self.over.wait(POLL_SECONDS):
            try:
                deliveries.send_due(self.database, self.settings.secret, self.settings.private_webhooks)
            except Exception as error:  # what was not sent stays due
                log.warning("webhooks could not be told yet", exc_info=error)
