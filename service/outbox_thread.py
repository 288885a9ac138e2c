"""Sends outbox messages to the broker in a background thread, so that no request waits for the broker."""

import threading
from functools import partial

import structlog

from core.database import Database
from core.jobs import messages, outbox

log = structlog.get_logger("service")

FIRST_PAUSE, MAX_PAUSE = 0.5, 30.0


class OutboxSender:
    """Sends outbox messages when woken, and retries while the broker is unavailable."""

    def __init__(self, database: Database, broker: str) -> None:
        self.database = database
        self.celery = messages.sender(broker)
        self._wake, self._closing = threading.Event(), threading.Event()
        self._thread: threading.Thread | None = None
        self._starting = threading.Lock()

    def wake(self) -> None:
        """Send the messages that are in the outbox."""
        with self._starting:
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="outbox-sender", daemon=True)
                self._thread.start()
        self._wake.set()

    def close(self) -> None:
        self._closing.set()
        self._wake.set()
        if self._thread is not None:
            self._thread.join(messages.BROKER_TIMEOUT_SECONDS)
        self.celery.close()

    def _run(self) -> None:
        pause = FIRST_PAUSE
        while self._wake.wait() and not self._closing.is_set():
            self._wake.clear()
            try:
                outbox.flush(self.database, partial(messages.send_job, self.celery))
                pause = FIRST_PAUSE
            except Exception as error:  # whatever the cause, unsent messages stay in the outbox
                if pause == FIRST_PAUSE:
                    log.warning("outbox_delivery_failed", retry_seconds=pause, exc_info=error)
                self._closing.wait(pause)
                pause = min(2 * pause, MAX_PAUSE)
                self._wake.set()
