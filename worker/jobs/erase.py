"""The job `erase`: makes a model forget people, deletes their data, and verifies that it is gone.

One job serves all open erasures of the model. Each step can be repeated: after a crash, another attempt finds what was
done already. Examples that were removed without an erasure are deleted on the way.
"""

from __future__ import annotations

from dataclasses import replace

from sqlalchemy.orm import Session

from core.erasure import queries, receipts, report, requests, states
from core.erasure.purge import (
    delete_examples,
    discard,
    find_traces,
    purge_removed,
    purge_versions,
    versions_to_purge,
    withdraw,
)
from core.erasure.queries import open_parts, verified_parts
from core.erasure.receipt_text import CACHES, Trace, count_of
from core.erasure.report import Deleted
from core.erasure.vacuum import mark_vacuum_due, vacuum_if_due, vacuum_now
from core.errors import Conflict, Unavailable
from core.jobs import leases, queue
from core.kprior import State
from core.models.policy import policy_of
from core.tables.erasures import Erasure, ErasureState, Part
from core.tables.jobs import JobKind, JobState
from core.tables.models import Model
from core.tables.versions import Version, VersionKind
from core.versions import history, orphans
from core.versions.knowledge import has_forgotten, is_proven
from core.versions.orphans import find_strays, sweep
from core.versions.queries import champion_of, purged_versions, tip_of
from core.versions.store import Store
from worker.attempt import JobAttempt
from worker.jobs.erasure_verification import verify
from worker.jobs.nested_job import run_nested


def erase(attempt: JobAttempt) -> None:
    """Complete every open erasure of the model, and delete what else is due."""
    advance(attempt, ErasureState.ADAPTING)
    forget(attempt)
    retrain(attempt)
    advance(attempt, ErasureState.VERIFYING)
    verified = verify(attempt)
    advance(attempt, ErasureState.PURGING)
    complete(attempt, verified, purge(attempt, verified))


def advance(attempt: JobAttempt, state: ErasureState) -> None:
    """Set the state of the model's erasures."""
    with attempt.write() as (session, _job, model):
        states.advance(session, model.id, state)


def forget(attempt: JobAttempt) -> None:
    """Adapt the model to its head, by a nested job; or withdraw it, if no training example is left."""
    attempt.progress(0.05, "adapting the model")
    with attempt.write() as (session, _job, model):
        if not is_behind(session, model):
            return
        if model.train_count == 0:
            withdraw(session, model)
            return
        job_id = queue.enqueue_adaptation(session, model, attempt.request_id, even_held=True)
    if job_id is not None and (failed := run_nested(attempt, job_id, "adapting the model")):
        raise Conflict(failed["code"], f"The adaptation failed: {failed['detail']}")


def retrain(attempt: JobAttempt) -> None:
    """Compare the adapted version with a full retrain, by a nested job, where the policy asks for that."""
    with attempt.write() as (session, _job, model):
        tip = tip_of(session, model)
        wanted = policy_of(model).erasure.retrain and open_parts(session, model.id)
        if not wanted or tip is None or tip.kind is VersionKind.TRAINED or queries.comparison_of(session, tip):
            return
        job_id = queue.enqueue(session, model, JobKind.RETRAIN, attempt.request_id).id
    if failed := run_nested(attempt, job_id, "retraining, to compare"):
        raise Conflict(failed["code"], f"The retrain that the policy asks for failed: {failed['detail']}")


def is_behind(session: Session, model: Model) -> bool:
    """Whether the tip has not forgotten somebody yet, or it is not proven: it may have been made before they asked."""
    tip = tip_of(session, model)
    return any(not has_forgotten(part, tip) or not is_proven(part, tip) for part, _ in open_parts(session, model.id))


def purge(attempt: JobAttempt, verified: set[str]) -> list[str]:
    """Delete rows, versions and files, and what MLflow has of them.

    Returns phrases for the job's message about what was deleted without an erasure.
    """
    attempt.progress(0.7, "deleting")
    with attempt.write() as (session, _job, model):
        for part, _ in still_verified(session, model, verified):
            purge_versions(session, model, part)
            noted = report.read(part)
            so_far = noted.deleted or Deleted()  # a repeated step finds only what is left
            count = (so_far.examples or 0) + delete_examples(session, model.id, part.positions)
            report.write(part, replace(noted, deleted=replace(so_far, examples=count)))
        outlived = versions_to_purge(session, model.id)
        for version in outlived:
            discard(session, version)
        done = ["versions purged whose time was over"] if outlived else []
        done += ["examples deleted that were plainly removed or replaced"] if purge_removed(session, model) else []
        lost = find_strays(session, attempt.context.store, history.folder_of(model.id))
    sweep(attempt.context.database, attempt.context.store)
    files = forget_in_mlflow(attempt, bool(lost))
    with attempt.write() as (session, _job, model):
        still = set(find_strays(session, attempt.context.store, history.folder_of(model.id))) if lost else set()
        for name in still.intersection(lost):  # after MLflow: without the files nobody would know what to delete there
            orphans.mark_orphan(session, name)
        for part, _ in still_verified(session, model, verified):
            noted = report.read(part)
            so_far = noted.deleted or Deleted()
            purged, count = queries.count_purged(session, part), (so_far.files or 0) + files
            deleted = replace(so_far, files=count, versions=purged)
            report.write(part, replace(noted, deleted=deleted, versions=queries.version_fates(session, part)))
    if lost:
        sweep(attempt.context.database, attempt.context.store)
    return done


def still_verified(session: Session, model: Model, verified: set[str]) -> list[tuple[Part, Erasure]]:
    """Those of the verified erasures that are still verified."""
    return [(part, erasure) for part, erasure in verified_parts(session, model) if erasure.id in verified]


def may_be_in_mlflow(version: Version) -> bool:
    """Whether MLflow may have something of a purged version.

    One that MLflow was not told of may have been uploaded by somebody who was killed before noting it.
    """
    return version.mlflow is None or bool(version.mlflow.get("version") or version.mlflow_folder)


def forget_in_mlflow(attempt: JobAttempt, lost: bool) -> int:
    """Delete the weights of purged versions in MLflow; returns how many files. Raises Unavailable if MLflow is down.

    `lost`: also those of versions that the database lost when it was restored from a backup.
    """
    with attempt.context.database.read() as session:
        numbers = [v.number for v in purged_versions(session, attempt.model_id) if may_be_in_mlflow(v)]
        model = session.get(Model, attempt.model_id)
    if model is None or (not numbers and not lost):
        return 0
    attempt.progress(0.8, "deleting in MLflow")
    from core.tracking.publisher import publish
    from core.tracking.purging import purge as purge_in_mlflow  # takes seconds to import

    url = attempt.context.settings.mlflow_url
    if url:  # first publish the version that replaces them, so that there always is a champion to load
        publish(attempt.context.database, attempt.context.store, url, attempt.owner, model=model.name)
    return purge_in_mlflow(attempt.context.database, url, attempt.owner, attempt.model_id, numbers, lost)["files"]


def champion_memory(session: Session, store: Store, model: Model) -> set[int]:
    """The positions of the examples in the champion's memory."""
    champion = champion_of(session, model)
    if champion is None:
        return set()
    return set(State.from_bytes(store.get(champion.file, champion.sha256)).memory.key.tolist())


def complete(attempt: JobAttempt, verified: set[str], done: list[str]) -> None:
    """Verify that everything is gone, and complete the erasures; the last model's job writes the receipt."""
    attempt.progress(0.9, "looking whether all is gone")
    database, store = attempt.context.database, attempt.context.store
    with database.write() as session:  # without the model's lock: several models may be locked, in a fixed order
        # examples about the person that came meanwhile, in any model, are erased before the receipt is written
        erasures = [erasure for _, erasure in open_parts(session, attempt.model_id) if erasure.id in verified]
        verified = verified - requests.include_new_examples(session, erasures)
    cleanup = vacuum_now(database)
    with attempt.write() as (session, job, model):
        receipts.require_all(session, store)
        count, remembered = 0, champion_memory(session, store, model)
        lost = len(find_strays(session, store, history.folder_of(model.id)))
        for part, erasure in still_verified(session, model, verified):
            found = find_traces(session, store, part, erasure.subject, remembered, lost)
            until = queries.last_purge_date(session, part)
            if attempt.context.settings.mlflow_url:
                # `forget_in_mlflow` checked, and raised if there was any; kept versions stay there, too
                found[(Trace.MLFLOW_PURGED if until else Trace.MLFLOW).value] = 0
            if left := [what for what, n in found.items() if n]:
                raise Unavailable("not_gone_yet", f"Still there: {', '.join(left)}.")
            noted = replace(report.read(part), checked=found, database=cleanup, caches=CACHES, kept_until=until)
            report.write(part, noted)
            states.complete_part(session, part, erasure)
            count += 1
        if open_parts(session, model.id):
            queue.enqueue(session, model, job.kind, attempt.request_id)
        if count:
            mark_vacuum_due(session)
        job.version = model.champion
        completed = [f"{count_of(count, 'erasure')} completed"] if count else []
        leases.end(job, JobState.SUCCEEDED, "; ".join(completed + done) or "nothing had to be deleted")
    vacuum_if_due(database)  # the person's hash was in the row of the erasure until now
    receipts.file_missing(database, store)
