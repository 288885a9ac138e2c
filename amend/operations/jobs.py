"""Starting, waiting for and cancelling jobs."""

from __future__ import annotations

from collections.abc import Callable

from amend import responses
from amend.client_methods import listing, operation
from amend.requests import Caller, Flow, Pages, path, without_none
from amend.waiting import WithJob, await_erasure, await_job, id_of, wait_operation


class Jobs(Caller):
    @operation
    def adapt(self, model: str) -> Flow[responses.Job]:
        """Adapt the model to all changes so far. The first adaptation trains it."""
        return self.ask(responses.Job, "POST", path("models", model, "adaptations"))

    @operation
    def retrain(self, model: str) -> Flow[responses.Job]:
        """Retrain from scratch, and compare the result with the adapted version at the same position."""
        return self.ask(responses.Job, "POST", path("models", model, "retrains"))

    @operation
    def job(self, job: responses.Job | str, *, wait: float | None = None) -> Flow[responses.Job]:
        """One job. With ``wait``, return when the job has ended or after that many seconds."""
        return self.ask(responses.Job, "GET", path("jobs", id_of(job)), wait=wait)

    @listing
    def jobs(
        self, *, model: str | None = None, state: str | None = None, kind: str | None = None
    ) -> Pages[responses.Job]:
        """Iterate over jobs, newest first."""
        return Pages(responses.Job, path("jobs"), without_none({"model": model, "state": state, "kind": kind}))

    @wait_operation
    def wait(
        self,
        job: responses.Job | responses.Erasure | WithJob | str | None,
        *,
        progress: Callable[..., object] | bool | None = None,
        timeout: float | None = None,
    ) -> Flow[responses.Job | responses.Erasure | None]:
        """Wait for a job to succeed and return it.

        ``job`` is a job, its id, or a response that has the id of a job (of a removal, a correction or a change);
        returns None if that response has no job. In a terminal or a notebook, a progress bar is shown
        (``progress=False``: never); a function given as ``progress`` is called with the job every second instead. An
        erasure is waited for as by ``wait_for_erasure``.

        Raises JobFailed if the job failed or was cancelled, and TimeoutError after ``timeout`` seconds; the job
        continues.
        """
        if isinstance(job, responses.Erasure):
            return (yield from await_erasure(self, job.id, progress, timeout))
        named = job.job if isinstance(job, WithJob) else job
        if named is None:
            return None
        if not isinstance(named, responses.Job | str):
            raise TypeError(f"Cannot wait for a {type(job).__name__}: it has no job.")
        return (yield from await_job(self, id_of(named), progress, timeout))

    @operation
    def cancel(self, job: responses.Job | str) -> Flow[responses.Job]:
        """Cancel a job. A queued job ends at once; a running job is asked to stop."""
        return self.ask(responses.Job, "POST", path("jobs", id_of(job), "cancel"))
