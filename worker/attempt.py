"""A job that is ours to do: what it is about, and how its results are written."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from sqlalchemy.orm import Session

from core.erasure.job_end import follow_up
from core.jobs import leases
from core.kprior import State
from core.tables.jobs import Job, JobKind
from core.tables.models import Model
from core.versions import history
from core.versions.orphans import disown, put_tracked, sweep
from core.versions.store import Stored
from worker.context import Context

Progress = Callable[[float, str], None]
Run = Callable[[Context, str], None]


class Outdated(Exception):
    """What is made must not be recorded: another version became the tip, or a person was erased meanwhile."""


@dataclass
class JobAttempt:
    """One attempt at a job."""

    context: Context
    job_id: str
    owner: str
    kind: JobKind
    number: int
    model_id: int
    model: str
    queue: str
    request_id: str | None
    run: Run
    """Runs another job, here and now."""
    progress: Progress = lambda fraction, phrase: None

    @classmethod
    def of(
        cls, context: Context, job: Job, model: Model, owner: str, run: Callable[[Context, str], None]
    ) -> JobAttempt:
        told = (job.id, owner, job.kind, job.attempts, model.id, model.name, job.queue, job.request_id)
        return cls(context, *told, run)

    def part(self, start: float, end: float) -> Progress:
        """The progress of a part of the work, as a part of the whole."""
        return lambda fraction, phrase: self.progress(start + fraction * (end - start), phrase)

    @contextmanager
    def write(self) -> Iterator[tuple[Session, Job, Model]]:
        """The transaction in which what came of the job is written: Lost or Cancelled if that must not be."""
        with self.context.database.write() as session:
            job, model = leases.require_owned(session, self.job_id, self.owner)
            yield session, job, model
            follow_up(session, job, model)

    def store_state(self, state: State) -> Stored:
        """Write a state to the store. Its file is an orphan, and swept away some time later, unless a version claims
        it."""
        folder = history.folder_of(self.model_id)
        return put_tracked(self.context.database, self.context.store, folder, state.to_bytes(), self.owner)

    def drop(self, stored: Stored) -> None:
        """Delete a file that no version will claim, and that may know a person who is being erased."""
        with self.context.database.write() as session:
            disown(session, stored.file)
        sweep(self.context.database, self.context.store)
