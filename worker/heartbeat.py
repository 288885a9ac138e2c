"""The heartbeat of a job: extends its lease in the background, and stops the work when that is necessary."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

import structlog

from core.jobs.leases import JobCancelled, JobLost
from worker.context import Context

log = structlog.get_logger("worker")

CHECK_SECONDS = 1.0
"""Between two checks; the database is written when there is progress to report, or the lease needs it."""


class HandedBack(Exception):
    """The worker was told to stop, and leaves the job to another one."""


class Heartbeat:
    """Called with the progress, a fraction of 0..1 and a phrase, it raises if the work must stop."""

    def __init__(self, context: Context, job_id: str, extend: Callable[[float, str], None]) -> None:
        """`extend` extends the lease and stores the progress; raises JobLost or JobCancelled if the work must stop."""
        self.context, self.job_id, self.extend = context, job_id, extend
        self.fraction, self.phrase = 0.0, "started"
        self._stop: Exception | None = None
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, name="heartbeat", daemon=True)

    def __call__(self, fraction: float, phrase: str) -> None:
        self.fraction, self.phrase = max(self.fraction, min(fraction, 1.0)), phrase
        if self._stop is not None:
            raise self._stop

    def __enter__(self) -> Heartbeat:
        self._thread.start()
        return self

    def __exit__(self, *_error: object) -> None:
        self._over.set()
        self._thread.join()

    def _run(self) -> None:
        settings = self.context.settings
        reported, extended, stopping_since = (0.0, ""), time.monotonic(), None
        while not self._over.wait(CHECK_SECONDS) and self._stop is None:
            now, progress = time.monotonic(), (self.fraction, self.phrase)
            if self.context.stopping():
                stopping_since = stopping_since or now
                if now - stopping_since >= settings.stop_seconds:
                    self._stop = HandedBack()
            if progress == reported and now - extended < settings.lease_seconds / 3:
                continue
            try:
                self.extend(*progress)
                reported, extended = progress, now
            except (JobLost, JobCancelled) as stop:
                self._stop = stop
            except Exception as error:  # of whatever kind: the work goes on while the lease lasts
                if now - extended > settings.lease_seconds:
                    self._stop = JobLost()  # another worker may have the job by now
                log.warning("the lease of a job could not be extended", job=self.job_id, exc_info=error)
