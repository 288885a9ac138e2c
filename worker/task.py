"""A job that is ours to do: what it is about, and how its results are written."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from sqlalchemy.orm import Session

from core.jobs import leases
from core.jobs.tables import Job, JobKind
from core.kprior import State
from core.models.table import Model
from core.versions import history
from core.versions.store import Stored
from core.versions.sweeping import put_noted
from worker.context import Context

Progress = Callable[[float, str], None]


@dataclass
class Task:
    """One attempt at a job."""

    context: Context
    job_id: str
    owner: str
    kind: JobKind
    attempt: int
    model_id: int
    request_id: str | None
    run: Callable[[Context, str], None]
    """Runs another job, here and now."""
    progress: Progress = lambda share, phrase: None

    @classmethod
    def of(cls, context: Context, job: Job, owner: str, run: Callable[[Context, str], None]) -> Task:
        return cls(context, job.id, owner, job.kind, job.attempts, job.model_id, job.request_id, run)

    def part(self, start: float, end: float) -> Progress:
        """The progress of a part of the work, as a part of the whole."""
        return lambda share, phrase: self.progress(start + share * (end - start), phrase)

    @contextmanager
    def write(self) -> Iterator[tuple[Session, Job, Model]]:
        """The transaction in which what came of the job is written: Lost or Cancelled if that must not be."""
        with self.context.database.write() as session:
            yield session, *leases.owned(session, self.job_id, self.owner)

    @contextmanager
    def stored(self, state: State) -> Iterator[Stored]:
        """A state's file in the store, deleted if the version is not recorded after all."""
        database, store = self.context.database, self.context.store
        stored = put_noted(database, store, history.folder_of(self.model_id), state.to_bytes(), self.owner)
        try:
            yield stored
        except BaseException:
            store.delete(stored.file)
            raise
