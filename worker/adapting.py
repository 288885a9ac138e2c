"""The job `adapt`: from the tip and the changes after it to a version at the head."""

from __future__ import annotations

from core.errors import Conflict
from core.jobs import holds, leases
from core.jobs.leases import Lost
from core.jobs.tables import JobState
from core.models.table import Model
from core.versions import history
from core.versions.store import Stored
from worker.candidates import next_version
from worker.making import Made
from worker.outdated import Outdated
from worker.subject import Subject
from worker.task import Task


def adapt(task: Task) -> None:
    """Bring the model to its head, and promote the new version if the policy says so."""
    while True:
        with task.context.database.read() as session:
            model = session.get(Model, task.model_id)
            if model is None:
                raise Lost
            subject = Subject.of(task.context, session, model, model.head)
        if subject.tip is not None and subject.tip.position == subject.at and not subject.unproven:
            if conclude_at_head(task, subject.tip.number):
                return
            continue
        if subject.count == 0:
            raise Conflict("nothing_to_train_on", "The model has no training examples in force.")
        try:
            made = next_version(task, subject)
        except Outdated:
            continue
        task.progress(0.95, "storing")
        stored = task.stored(made.state)
        try:
            record(task, subject, made, stored)
            return
        except Outdated:
            task.drop(stored)


def conclude_at_head(task: Task, number: int) -> bool:
    """Nothing is to be made: the tip is promoted, should it have waited for that; False if it is the tip no more."""
    with task.write() as (session, job, model):
        if model.tip != number:
            return False
        words = f"version {number} is at the head already"
        if model.champion != number and history.promotes(model):
            history.promote(session, model, history.find(session, model, number), by="policy")
            words += ", promoted"
        job.version = number
        leases.end(session, job, model, JobState.SUCCEEDED, words)
    return True


def record(task: Task, subject: Subject, made: Made, stored: Stored) -> None:
    with task.write() as (session, job, model):
        if model.tip != (subject.tip.number if subject.tip else None):
            raise Outdated
        version = made.record(task, session, model, job, stored)
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
        leases.end(session, job, model, JobState.SUCCEEDED, words)
