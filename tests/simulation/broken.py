"""Deliberately broken variants of the product, which the simulator must detect."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest.mock import patch

from sqlalchemy import delete

import core.jobs.leases
import core.jobs.queue
import core.versions.promotion
import worker.jobs.adapt
import worker.jobs.erase
import worker.versions.recording
from core import clock
from core.jobs.messages import RUN_TASK
from core.tables.bookkeeping import OrphanFile
from tests.simulation.world import SimulatedDatabase


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
        (worker.versions.recording.orphans, "claim", claim),
    )


def message_before_commit() -> Any:
    """A message is sent within the transaction that enqueues its job."""

    def enqueue_message(_session: Any, job: Any) -> None:
        job.sent_at = clock.now()
        SimulatedDatabase.world.broker.send_task(RUN_TASK, [job.id])

    return replaced(
        (core.jobs.queue, "enqueue_message", enqueue_message),
        (core.jobs.leases, "enqueue_message", enqueue_message),
    )


def receipt_before_purge() -> Any:
    """The job completes the erasures before it deletes anything."""
    complete, purge = worker.jobs.erase.complete, worker.jobs.erase.purge

    def complete_first(attempt: Any, verified: set[str]) -> list[str]:
        complete(attempt, verified, [])
        return purge(attempt, verified)

    return replaced(
        (worker.jobs.erase, "purge", complete_first),
        (worker.jobs.erase, "complete", lambda attempt, verified, done: None),
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
        (core.versions.promotion, "may_depend_on_erased", lambda session, version: False),
    )


def restore_without_replay() -> Any:
    """Erasures are not repeated after a restore; `simulate` then skips this step."""
    return replaced()


VARIANTS: dict[str, Callable[[], Any]] = {
    "lease without fencing": lease_without_fencing,
    "message before commit": message_before_commit,
    "receipt before purge": receipt_before_purge,
    "outdated snapshot": outdated_snapshot,
    "restore without replay": restore_without_replay,
}
