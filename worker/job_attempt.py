"""One attempt at a job: its parameters, and how its results are written."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from sqlalchemy.orm import Session

from core.jobs import leases
from core.kprior import State
from core.lifecycle.job_completion import follow_up
from core.tables.jobs import Job, JobKind
from core.tables.models import Model
from core.versions.orphan_files import disown, put_tracked, sweep
from core.versions.store import StoredFile, folder_of
from worker.context import Context

Progress = Callable[[float, str], None]
"""Reports the progress as a fraction and a phrase; raises if the work must stop."""
Run = Callable[[Context, str], None]
"""Runs the job with an id."""


class Outdated(Exception):
    """A draft must not be recorded, because another version became the tip or a person was erased meanwhile."""


@dataclass
class JobAttempt:
    """One attempt at a job, under a lease."""

    context: Context
    job_id: str
    owner: str
    """The name under which the lease was taken."""
    kind: JobKind
    number: int
    """1 for the first attempt."""
    model_id: int
    model: str
    """The model's name."""
    request_id: str | None
    """The id of the request that enqueued the job."""
    traceparent: str | None
    """The span of that request, if traces are on."""
    run: Run
    """Runs another job in this process before this one continues."""
    progress: Progress = lambda fraction, phrase: None

    @classmethod
    def of(cls, context: Context, job: Job, model: Model, owner: str, run: Run) -> JobAttempt:
        return cls(
            context=context,
            job_id=job.id,
            owner=owner,
            kind=job.kind,
            number=job.attempts,
            model_id=model.id,
            model=model.name,
            request_id=job.request_id,
            traceparent=job.traceparent,
            run=run,
        )

    def progress_within(self, start: float, end: float) -> Progress:
        """Progress of a step that covers the fraction of the work from `start` to `end`."""
        return lambda fraction, phrase: self.progress(start + fraction * (end - start), phrase)

    @contextmanager
    def write(self) -> Iterator[tuple[Session, Job, Model]]:
        """The transaction that writes the job's results. Raises JobLost or JobCancelled if they must not be written."""
        with self.context.database.write() as session:
            job, model = leases.require_owned(session, self.job_id, self.owner)
            yield session, job, model
            follow_up(session, job, model)

    def store_state(self, state: State) -> StoredFile:
        """Write a state to the store. Unless a version claims the file, it is an orphan and will be deleted."""
        folder = folder_of(self.model_id)
        return put_tracked(self.context.database, self.context.store, folder, state.to_bytes(), self.owner)

    def drop(self, stored: StoredFile) -> None:
        """Delete a file that no version will claim, since it may depend on data of a person who is being erased."""
        with self.context.database.write() as session:
            disown(session, stored.file)
        sweep(self.context.database, self.context.store)
