"""The heartbeat of a job: extends its lease in the background, and stops the work if necessary."""

from __future__ import annotations

import threading
from collections.abc import Callable

import structlog

from core import clock, tracing
from core.jobs.leases import JobCancelled, JobLost
from worker.context import Context

log = structlog.get_logger("worker")

CHECK_SECONDS = 1.0
"""Interval between checks; the database is written only if there is progress or the lease must be extended."""


class HandedBack(Exception):
    """The worker is shutting down and leaves the job to another worker."""


class Heartbeat:
    """Takes the progress, a fraction in 0..1 and a phrase, and raises if the work must stop."""

    def __init__(self, context: Context, job_id: str, extend: Callable[[float, str], None]) -> None:
        """`extend` extends the lease and stores the progress; raises JobLost or JobCancelled if the work must stop."""
        self.context, self.job_id, self.extend = context, job_id, extend
        self.fraction, self.phrase = 0.0, "Started"
        self._stop: Exception | None = None
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, name="heartbeat", daemon=True)

    def __call__(self, fraction: float, phrase: str) -> None:
        if phrase != self.phrase:
            tracing.note(phrase)
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
        reported, extended, stopping_since = (0.0, ""), clock.monotonic(), None
        while not clock.wait(self._over, CHECK_SECONDS) and self._stop is None:
            now, progress = clock.monotonic(), (self.fraction, self.phrase)
            if self.context.stopping():
                stopping_since = stopping_since or now
                if now - stopping_since >= settings.shutdown_timeout:
                    self._stop = HandedBack()
            if progress == reported and now - extended < settings.lease_seconds / 3:
                continue
            try:
                self.extend(*progress)
                reported, extended = progress, now
            except (JobLost, JobCancelled) as stop:
                self._stop = stop
            except Exception as error:  # whatever it is, the work continues while the lease lasts
                if now - extended > settings.lease_seconds:
                    self._stop = JobLost()  # another worker may have the job by now
                log.warning("lease_extension_failed", job=self.job_id, exc_info=error)
