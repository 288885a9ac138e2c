"""The job `erase`: makes a model forget people, deletes their data, and verifies that it is gone.

One job processes all open erasures of the model. Every step can be repeated after a crash. The job also deletes
examples that were removed without an erasure.
"""

from dataclasses import replace

from sqlalchemy.orm import Session

from core.analyses.records import delete_analyses
from core.erasure import fitted_encoders, receipt_content, receipts, requests, state_changes, version_fates
from core.erasure.copies import find_copies
from core.erasure.identifiers import subjects_of
from core.erasure.purge import (
    delete_examples,
    delete_pending,
    find_traces,
    purge_versions,
    record_purges,
    vacuum_database,
)
from core.erasure.queries import verified_parts
from core.erasure.receipt_content import Deleted
from core.erasure.receipt_text import CACHES, Trace, count_of
from core.errors import Conflict, Unavailable
from core.jobs import leases, queue
from core.kprior import State
from core.lifecycle.removed_examples import purge_removed
from core.lifecycle.withdrawal import withdraw
from core.metadata import was_restored
from core.models.training_options import retrains_on_erasure
from core.register import journal_files
from core.tables.erasures import Erasure, ErasureState, Part
from core.tables.jobs import JobKind, JobState
from core.tables.models import Model
from core.tables.versions import VersionKind
from core.vacuum import mark_vacuum_due
from core.versions import orphan_files
from core.versions.erased_examples import has_forgotten, made_after_request, open_parts
from core.versions.orphan_files import count_unused, find_strays, sweep
from core.versions.purging import may_be_in_mlflow, purge_version, versions_due_for_purge
from core.versions.queries import champion_of, comparison_of, purged_versions, tip_of
from core.versions.store import Store, folder_of
from worker.job_attempt import JobAttempt
from worker.jobs.erasure_verification import verify
from worker.jobs.nested_job import run_nested


def erase(attempt: JobAttempt) -> None:
    """Complete every open erasure of the model, and delete removed examples and versions that are due."""
    advance(attempt, ErasureState.ADAPTING)
    forget(attempt)
    retrain(attempt)
    advance(attempt, ErasureState.VERIFYING)
    verified = verify(attempt)
    advance(attempt, ErasureState.PURGING)
    complete(attempt, verified, purge(attempt, verified))


def advance(attempt: JobAttempt, state: ErasureState) -> None:
    """Move the model's erasures to a state."""
    with attempt.write() as (session, _job, model):
        state_changes.advance(session, model.id, state)


def forget(attempt: JobAttempt) -> None:
    """Adapt the model to its head in a nested job, or withdraw it if no training examples are left."""
    attempt.progress(0.05, "Adapting the model")
    with attempt.write() as (session, _job, model):
        fitted_encoders.require_replaced(session, model, open_parts(session, model.id))
        if not is_behind(session, model):
            return
        if model.train_count == 0:
            withdraw(session, model)
            return
        job_id = queue.enqueue_adaptation(session, model, attempt.request_id, even_held=True)
    if job_id is not None and (failed := run_nested(attempt, job_id, "Adapting the model")):
        raise Conflict(failed["code"], f"The adaptation failed: {failed['detail']}")


def retrain(attempt: JobAttempt) -> None:
    """Compare the adapted version with a full retrain, in a nested job, if the policy asks for it."""
    with attempt.write() as (session, _job, model):
        tip = tip_of(session, model)
        wanted = retrains_on_erasure(model) and open_parts(session, model.id)
        if not wanted or tip is None or tip.kind is VersionKind.TRAINED or comparison_of(session, tip):
            return
        job_id = queue.enqueue(session, model, JobKind.RETRAIN, attempt.request_id).id
    if failed := run_nested(attempt, job_id, "Retraining for comparison"):
        raise Conflict(failed["code"], f"The retrain required by the policy failed: {failed['detail']}")


def is_behind(session: Session, model: Model) -> bool:
    """Whether the tip still depends on a person being erased, or was created before the request and is not verified."""
    tip = tip_of(session, model)
    parts = [part for part, _ in open_parts(session, model.id) if part.positions]
    return any(not has_forgotten(part, tip) or not made_after_request(part, tip) for part in parts)


def purge(attempt: JobAttempt, verified: set[str]) -> list[str]:
    """Delete rows, versions and files, also in MLflow.

    Returns sentences for the job's message about what was deleted without an erasure.
    """
    attempt.progress(0.7, "Deleting data")
    with attempt.write() as (session, _job, model):
        parts = still_verified(session, model, verified)
        analyses = delete_analyses(session, model.id) if parts else 0  # their results depend on all examples
        for part, erasure in parts:
            purge_versions(session, model, part)
            noted = receipt_content.read(part)
            so_far = noted.deleted or Deleted()  # if the step is repeated, only the rest is counted
            count = (so_far.examples or 0) + delete_examples(session, model, part.positions)
            count += delete_pending(session, model, subjects_of(session, erasure))
            results = (so_far.analyses or 0) + analyses
            receipt_content.write(part, replace(noted, deleted=replace(so_far, examples=count, analyses=results)))
        outlived = versions_due_for_purge(session, model.id)
        record_purges(session, outlived)
        for version in outlived:
            purge_version(session, version)
        done = ["Versions purged whose retention period had ended."] if outlived else []
        done += ["Removed and replaced examples deleted."] if purge_removed(session, model) else []
        lost = find_strays(session, attempt.context.store, folder_of(model.id))
        # a version that the database lost in a restore may be in MLflow although its file is deleted already
        restored = bool(parts) and was_restored(session)
    sweep(attempt.context.database, attempt.context.store)
    journal_files.write(attempt.context.database, attempt.context.store)
    journal_files.delete_unfinished(attempt.context.database, attempt.context.store)
    files = forget_in_mlflow(attempt, bool(lost) or restored)
    with attempt.write() as (session, _job, model):
        still = set(find_strays(session, attempt.context.store, folder_of(model.id))) if lost else set()
        for name in still.intersection(lost):  # after MLflow: the files identify what to delete there
            orphan_files.mark_orphan(session, name)
        for part, _ in still_verified(session, model, verified):
            noted = receipt_content.read(part)
            so_far = noted.deleted or Deleted()
            purged, count = version_fates.count_purged(session, part), (so_far.files or 0) + files
            deleted = replace(so_far, files=count, versions=purged)
            receipt_content.write(
                part, replace(noted, deleted=deleted, versions=version_fates.find_fates(session, part))
            )
    if lost:
        sweep(attempt.context.database, attempt.context.store)
    return done


def still_verified(session: Session, model: Model, verified: set[str]) -> list[tuple[Part, Erasure]]:
    """The verified erasures that are still verified."""
    return [(part, erasure) for part, erasure in verified_parts(session, model) if erasure.id in verified]


def forget_in_mlflow(attempt: JobAttempt, lost: bool) -> int:
    """Delete the weights of purged versions in MLflow; returns the number of files. Raises Unavailable if it is down.

    `lost`: also delete versions that the database lost when it was restored from a backup.
    """
    with attempt.context.database.read() as session:
        numbers = [v.number for v in purged_versions(session, attempt.model_id) if may_be_in_mlflow(v)]
        model = session.get(Model, attempt.model_id)
        champion = None if model is None else champion_of(session, model)
    if model is None or (not numbers and not lost):
        return 0
    attempt.progress(0.8, "Deleting data in MLflow")
    from core.tracking.publisher import publish
    from core.tracking.purging import purge as purge_in_mlflow  # takes seconds to import

    url = attempt.context.settings.mlflow_url
    if url and champion is not None and champion.job_id:
        # only the version that replaces them, so that there is a champion to load: the receipt waits for nothing else
        publish(attempt.context.database, attempt.context.store, url, attempt.owner, job=champion.job_id)
    return purge_in_mlflow(attempt.context.database, url, attempt.owner, attempt.model_id, numbers, lost)["files"]


def champion_memory(session: Session, store: Store, model: Model) -> set[int]:
    """Positions of the examples in the champion's memory.

    Empty if its file does not exist: it was deleted after the backup that the database was restored from.
    """
    champion = champion_of(session, model)
    if champion is None or not store.exists(champion.file):
        return set()
    return set(State.from_bytes(store.get(champion.file, champion.sha256)).memory.key.tolist())


def complete(attempt: JobAttempt, verified: set[str], done: list[str]) -> None:
    """Verify that all data is gone, and complete the erasures; the job of the last model writes the receipt."""
    attempt.progress(0.9, "Verifying that all data is gone")
    database, store = attempt.context.database, attempt.context.store
    cleanup = vacuum_database(database)
    with database.write() as session:  # without this model's lock: several models may be locked, in a fixed order
        # examples of the person that arrived meanwhile, in any model, are erased before the receipt is written
        erasures = [erasure for _, erasure in open_parts(session, attempt.model_id) if erasure.id in verified]
        verified = verified - requests.include_new_examples(session, erasures)
    with attempt.write() as (session, job, model):
        count, remembered = 0, champion_memory(session, store, model)
        # a job that began before the request may have stored weights that it will not be allowed to record
        unused = count_unused(session, store, folder_of(model.id))
        parts = still_verified(session, model, verified)
        # the next job erases what arrived just now
        late = requests.find_late(session, [erasure for _, erasure in parts])
        for part, erasure in parts:
            if erasure.id in late:
                continue
            found = find_traces(session, store, part, subjects_of(session, erasure), remembered, unused)
            until = version_fates.last_purge_date(session, part)
            if attempt.context.settings.mlflow_url:
                # `forget_in_mlflow` raised if there was any; versions that are kept also stay in MLflow
                found[(Trace.MLFLOW_PURGED if until else Trace.MLFLOW).value] = 0
            if left := [what for what, n in found.items() if n]:
                raise Unavailable("not_gone_yet", f"Some data is not deleted yet: {', '.join(left)}.")
            if journal_files.may_have_contents(session, model.id, part.removal_position):
                raise Unavailable("not_gone_yet", "Some data is not deleted yet: contents of corrected examples.")
            noted = replace(
                receipt_content.read(part), checked=found, database=cleanup, caches=CACHES, kept_until=until
            )
            receipt_content.write(part, replace(noted, copies=find_copies(session, model, part)))
            state_changes.complete_part(session, part, erasure)
            count += 1
        if open_parts(session, model.id):
            queue.enqueue(session, model, job.kind, attempt.request_id)
        if count:
            mark_vacuum_due(session)  # until now, the row of the erasure contained the hash of the person
        job.version = model.champion
        completed = [f"{count_of(count, 'erasure')} completed."] if count else []
        leases.end(job, JobState.SUCCEEDED, " ".join(completed + done) or "There was nothing to delete.")
    receipts.write_files(database, store)
