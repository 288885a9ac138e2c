"""Deliberately broken variants of the product, which the simulator must detect."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest.mock import patch

from sqlalchemy import delete

import core.jobs.leases
import core.jobs.queue
import core.jobs.retries
import core.ledger.journal
import core.ledger.quarantine
import core.lifecycle.replay_after_restore
import core.promotion.decision
import service.analyses.endpoints
import worker.job_runner
import worker.jobs.adapt
import worker.jobs.erase
import worker.jobs.retrain
import worker.versions.recording
import worker.versions.rejection
import worker.versions.test_then_train
from core import clock
from core.jobs.messages import RUN_TASK
from core.tables.bookkeeping import OrphanFile
from core.tables.jobs import JobState
from tests.simulation.world import SimulatedDatabase, namespace
from worker.versions.test_then_train import NewExamplesScored


@contextmanager
def replaced(*replacements: tuple[Any, str, Any]) -> Iterator[None]:
    with ExitStack() as stack:
        for module, name, value in replacements:
            stack.enter_context(patch.object(module, name, value))
        yield


def lease_without_fencing() -> Any:
    """A worker that has lost its lease writes its results all the same."""

    def find_owned(session: Any, job_id: str, _owner: str) -> Any:
        return core.jobs.leases.lock(session, job_id)

    def extend(*_arguments: Any) -> None: ...

    def claim(session: Any, path: str, _owner: str) -> bool:
        session.execute(delete(OrphanFile).where(OrphanFile.path == path))
        return True

    return replaced(
        (core.jobs.leases, "find_owned", find_owned),
        (core.jobs.leases, "extend", extend),
        (worker.versions.recording.orphan_files, "claim", claim),
    )


def message_before_commit() -> Any:
    """A message is sent within the transaction that enqueues its job."""

    def enqueue_message(_session: Any, job: Any) -> None:
        job.sent_at = clock.now()
        SimulatedDatabase.world.broker.send_task(RUN_TASK, [job.id])

    return replaced(
        (core.jobs.queue, "enqueue_message", enqueue_message),
        (core.jobs.retries, "enqueue_message", enqueue_message),
    )


def receipt_before_purge() -> Any:
    """The job completes the erasures before it deletes anything."""
    complete, purge = worker.jobs.erase.complete, worker.jobs.erase.purge

    def complete_first(attempt: Any, verified: set[str]) -> list[str]:
        complete(attempt, verified, [])
        return purge(attempt, verified)

    def end_job(attempt: Any, _verified: set[str], _done: list[str]) -> None:
        with attempt.write() as (_session, job, _model):
            core.jobs.leases.end(job, JobState.SUCCEEDED, "")

    return replaced(
        (worker.jobs.erase, "purge", complete_first),
        (worker.jobs.erase, "complete", end_job),
        # the job ends after the purge: if it had ended before, nothing would ever be deleted
        (worker.jobs.erase, "leases", namespace(end=lambda *arguments: None)),
        (worker.jobs.erase, "find_traces", lambda *arguments: {}),
    )


def outdated_snapshot() -> Any:
    """A job promotes a version without checking whether the model has changed since its snapshot."""

    def settle(_snapshot: Any, draft: Any, _scored: Any, session: Any, model: Any, version: Any) -> str:
        worker.jobs.adapt.set_tip(model, version)
        worker.jobs.adapt.request_promotion(session, model, version, worker.jobs.adapt.Requester.POLICY)
        return worker.jobs.adapt.describe_draft(version, draft)

    return replaced(
        (worker.jobs.adapt, "settle", settle),
        (worker.versions.recording, "require_current", lambda session, model, draft: None),
        (core.promotion.decision, "may_depend_on_erased", lambda session, version: False),
    )


def restore_without_replay() -> Any:
    """After a restore, jobs run although nothing was replayed; `simulate` then skips the replay."""
    return jobs_before_replay()


def jobs_before_replay() -> Any:
    """After a restore, jobs do not wait for the replay."""
    return replaced((worker.job_runner, "require_current", lambda *arguments: None))


def replay_without_journal() -> Any:
    """A replay repeats erasures, but neither removals nor corrections."""
    return replaced((core.lifecycle.replay_after_restore, "replay_changes", lambda *arguments: None))


def erasure_without_journal() -> Any:
    """An erasure leaves the contents of corrected examples in the journal."""
    return replaced((core.ledger.journal, "forget_contents", lambda *arguments: None))


def rejection_without_quarantine() -> Any:
    """A version is rejected, but the examples that it learnt stay in force."""
    return replaced((worker.versions.rejection, "quarantine", lambda *arguments: 0))


def windows_before_version() -> Any:
    """Windows are stored in a transaction of their own, so that a job which is repeated stores them again."""
    score = worker.versions.test_then_train.score_new_examples

    def score_and_store(snapshot: Any) -> Any:
        scored = score(snapshot)
        with snapshot.context.database.write() as session:
            session.add_all(scored.windows)
        return NewExamplesScored(scored.since, scored.until)

    return replaced(
        (worker.jobs.adapt, "score_new_examples", score_and_store),
        (worker.jobs.retrain, "score_new_examples", score_and_store),
    )


def accept_without_examples() -> Any:
    """A decision ends the quarantine, but the accepted examples do not return into force."""
    return replaced((core.ledger.quarantine, "restore", lambda *arguments: []))


def choice_without_second_look() -> Any:
    """The choice of examples to label is stored without checking whether they were removed meanwhile."""
    return replaced((service.analyses.endpoints, "is_outdated", lambda *arguments: False))


VARIANTS: dict[str, Callable[[], Any]] = {
    "lease without fencing": lease_without_fencing,
    "message before commit": message_before_commit,
    "receipt before purge": receipt_before_purge,
    "outdated snapshot": outdated_snapshot,
    "restore without replay": restore_without_replay,
    "jobs before the replay": jobs_before_replay,
    "replay without the journal": replay_without_journal,
    "erasure without the journal": erasure_without_journal,
    "rejection without quarantine": rejection_without_quarantine,
    "windows before the version": windows_before_version,
    "accept without examples": accept_without_examples,
    "choice without a second look": choice_without_second_look,
}
