"""The job `adapt`: from the tip and the changes after it to a version at the head."""

from __future__ import annotations

from core.errors import Conflict
from core.jobs import holds, leases
from core.jobs.leases import Lost
from core.tables.jobs import JobState
from core.tables.models import Model
from core.versions import history
from core.versions.queries import find_version
from core.versions.store import Stored
from worker.attempt import JobAttempt
from worker.outdated import Outdated
from worker.versions.builder import VersionDraft
from worker.versions.candidates import next_version
from worker.versions.snapshot import ModelSnapshot


def adapt(attempt: JobAttempt) -> None:
    """Bring the model to its head, and promote the new version if the policy says so."""
    while True:
        with attempt.context.database.read() as session:
            model = session.get(Model, attempt.model_id)
            if model is None:
                raise Lost
            snapshot = ModelSnapshot.of(attempt.context, session, model, model.head)
        if snapshot.tip is not None and snapshot.tip.position == snapshot.at and not snapshot.unproven:
            if conclude_at_head(attempt, snapshot.tip.number):
                return
            continue
        if snapshot.count == 0:
            raise Conflict("nothing_to_train_on", "The model has no training examples in force.")
        try:
            made = next_version(attempt, snapshot)
        except Outdated:
            continue
        attempt.progress(0.95, "storing")
        stored = attempt.stored(made.state)
        try:
            record(attempt, snapshot, made, stored)
            return
        except Outdated:
            attempt.drop(stored)


def conclude_at_head(attempt: JobAttempt, number: int) -> bool:
    """Nothing is to be made: the tip is promoted, should it have waited for that; False if it is the tip no more."""
    with attempt.write() as (session, job, model):
        if model.tip != number:
            return False
        words = f"version {number} is at the head already"
        if model.champion != number and history.promotes(model):
            history.promote(session, model, find_version(session, model, number), by="policy")
            words += ", promoted"
        job.version = number
        leases.end(job, JobState.SUCCEEDED, words)
    return True


def record(attempt: JobAttempt, snapshot: ModelSnapshot, made: VersionDraft, stored: Stored) -> None:
    with attempt.write() as (session, job, model):
        if model.tip != (snapshot.tip.number if snapshot.tip else None):
            raise Outdated
        version = made.record(attempt, session, model, job, stored)
        model.tip = version.number
        words = f"version {version.number}, {version.kind} for positions {made.since + 1} to {made.position}"
        if made.method == "warm":
            words += " by a warm descent on all examples"
        if made.since == made.position:
            words = f"version {version.number}, certified at position {made.position}"
        if made.why:
            words += f", because {made.why}"
        if history.promotes(model):
            history.promote(session, model, version, by="policy")
            words += ", promoted"
        elif model.held_at is not None:
            words += f", {holds.NOT_PROMOTED}"
        leases.end(job, JobState.SUCCEEDED, words)
