"""Jobs: asked for, waited for, cancelled."""

from __future__ import annotations

from collections.abc import Callable

from amend import responses
from amend.sansio import Caller, Flow, Pages, listing, operation, path, without_none
from amend.waiting import WithJob, await_erasure, await_job, id_of, wait_operation


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
        job: responses.Job | responses.Erasure | WithJob | str | None,
        *,
        progress: Callable[..., object] | None = None,
        timeout: float | None = None,
    ) -> Flow[responses.Job | responses.Erasure | None]:
        """A job, once it has succeeded: given as such, by its id, or by any answer that names one, as those to
        removals, corrections and changes do. None where there was nothing to do. ``progress`` is called with it, every
        second. An erasure is waited for as by ``wait_for_erasure``.

        JobFailed if it failed or was cancelled; TimeoutError after ``timeout`` seconds, while the job goes on.
        """
        if isinstance(job, responses.Erasure):
            return (yield from await_erasure(self, job.id, progress, timeout))
        named = job.job if isinstance(job, WithJob) else job
        if named is None:
            return None
        if not isinstance(named, responses.Job | str):
            raise TypeError(f"nothing is to be waited for: a {type(job).__name__} has no job")
        return (yield from await_job(self, id_of(named), progress, timeout))

    @operation
    def cancel(self, job: responses.Job | str) -> Flow[responses.Job]:
        """Cancel a job: a queued one ends at once, a running one is asked to stop."""
        return self.ask(responses.Job, "POST", path("jobs", id_of(job), "cancel"))
