"""Jobs: asked for, waited for, cancelled."""

from __future__ import annotations

from collections.abc import Callable

from amend import responses
from amend.errors import JobFailed
from amend.sansio import Caller, Flow, Pages, listing, operation, path, without_none
from amend.waiting import id_of, wait_operation, wait_until_ended

# Seconds of one long poll. It is answered when the job ends; with a callback this is how often it is called.
LONG_POLL, REPORT_EVERY = 30, 1


class Jobs(Caller):
    """Adaptations, retrains, and whatever else is worked on."""

    @operation
    def adapt(self, model: str) -> Flow[responses.Job]:
        """Adapt the model to all changes so far. The first time, this trains it."""
        return self.ask(responses.Job, "POST", path("models", model, "adaptations"))

    @operation
    def retrain(self, model: str) -> Flow[responses.Job]:
        """Retrain from scratch, and compare with the adapted model at the same position."""
        return self.ask(responses.Job, "POST", path("models", model, "retrains"))

    @operation
    def job(self, job: responses.Job | str, *, wait: float | None = None) -> Flow[responses.Job]:
        """One job as it stands; with ``wait``, when it has ended or after so many seconds."""
        return self.ask(responses.Job, "GET", path("jobs", id_of(job)), wait=wait)

    @listing
    def jobs(
        self, *, model: str | None = None, state: str | None = None, kind: str | None = None
    ) -> Pages[responses.Job]:
        """Jobs, the newest first."""
        return Pages(responses.Job, path("jobs"), without_none({"model": model, "state": state, "kind": kind}))

    @wait_operation
    def wait(
        self,
        job: responses.Job | str | None,
        *,
        progress: Callable[[responses.Job], object] | None = None,
        timeout: float | None = None,
    ) -> Flow[responses.Job | None]:
        """A job, once it has succeeded; None for None, where there was nothing to do. ``progress`` is called with it,
        every second.

        JobFailed if it failed or was cancelled; TimeoutError after ``timeout`` seconds, while the job goes on.
        """
        if job is None:
            return None
        every = LONG_POLL if progress is None else REPORT_EVERY
        place = path("jobs", id_of(job))
        found = yield from wait_until_ended(
            lambda seconds: self.ask(responses.Job, "GET", place, wait=seconds), every, progress, timeout
        )
        if found.state != "succeeded":
            raise JobFailed(found)
        return found

    @operation
    def cancel(self, job: responses.Job | str) -> Flow[responses.Job]:
        """Cancel a job: a queued one ends at once, a running one is asked to stop."""
        return self.ask(responses.Job, "POST", path("jobs", id_of(job), "cancel"))
