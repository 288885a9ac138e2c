"""The job `adapt`: from the tip and the changes after it to a version at the head."""

from __future__ import annotations

from functools import partial

from sqlalchemy.orm import Session

from core.erasure.purge import withdraw
from core.errors import Conflict
from core.jobs import holds, leases
from core.jobs.leases import JobLost
from core.tables.jobs import JobState
from core.tables.models import Model
from core.tables.versions import Version
from core.tracking.descriptions import describe_span
from core.versions import history, imports
from core.versions.history import VersionDraft
from core.versions.queries import find_version, newest_number
from worker.attempt import JobAttempt, Outdated
from worker.versions.candidates import next_version
from worker.versions.recording import record_version
from worker.versions.snapshot import ModelSnapshot


def adapt(attempt: JobAttempt) -> None:
    """Bring the model to its head, and promote the new version if the policy says so."""
    while True:
        with attempt.context.database.read() as session:
            model = session.get(Model, attempt.model_id)
            if model is None:
                raise JobLost
            snapshot = ModelSnapshot.of(attempt.context, session, model, model.head)
            ever_trained = newest_number(session, model.id) > 0
        if snapshot.tip is not None and snapshot.tip.position == snapshot.at and not snapshot.unproven:
            if conclude_at_head(attempt, snapshot.tip.number):
                return
            continue
        if snapshot.count == 0:
            if not ever_trained:
                raise Conflict("nothing_to_train_on", "The model has no training examples in force.")
            if conclude_withdrawn(attempt):
                return
            continue
        try:
            draft = next_version(attempt, snapshot)
            record_version(attempt, draft, partial(settle, snapshot, draft))
            return
        except Outdated:
            continue


def conclude_withdrawn(attempt: JobAttempt) -> bool:
    """Withdraw the model, since no training example is left; returns False if there are some again."""
    with attempt.write() as (session, job, model):
        if model.train_count:
            return False
        withdraw(session, model)
        message = "no training example is left: the model is withdrawn, and trained anew when there are some"
        leases.end(job, JobState.SUCCEEDED, message)
    return True


def conclude_at_head(attempt: JobAttempt, number: int) -> bool:
    """End the job without a new version, and promote the tip if it was not yet; returns False if the tip changed."""
    with attempt.write() as (session, job, model):
        if model.tip != number:
            return False
        message = f"version {number} is at the head already"
        if model.champion != number and history.promotes(model):
            history.promote(session, model, find_version(session, model, number), by="policy")
            message += ", promoted"
        job.version = number
        leases.end(job, JobState.SUCCEEDED, message)
    return True


def settle(snapshot: ModelSnapshot, draft: VersionDraft, session: Session, model: Model, version: Version) -> str:
    """Make the new version the tip, and promote it if the policy says so; returns the job's message."""
    if model.tip != (snapshot.tip.number if snapshot.tip else None):
        raise Outdated
    model.tip = version.number
    imports.drop(session, model.id)
    message = f"version {version.number}, {version.kind} for {describe_span(draft.since + 1, draft.position)}"
    if draft.method == "imported":
        message += " from imported weights"
    if draft.method == "warm":
        message += " by a warm descent on all examples"
    if draft.since == draft.position:
        message = f"version {version.number}, certified at position {draft.position}"
    if draft.why:
        message += f", because {draft.why}"
    if history.promotes(model):
        history.promote(session, model, version, by="policy")
        message += ", promoted"
    elif model.held_at is not None:
        message += f", {holds.NOT_PROMOTED}"
    return message
