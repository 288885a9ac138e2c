"""Making a version: by adaptation from its parent, or from scratch; certified and evaluated, not yet recorded.

`candidates.py` says which of them becomes the version.
"""

from __future__ import annotations

import math
import time
from dataclasses import dataclass, replace
from typing import Any

import structlog
import torch
from sqlalchemy.orm import Session

from core.erasure.requests import open_parts
from core.jobs.tables import Job
from core.kprior import (
    AddData,
    Certificate,
    ChangeModel,
    ChangeRegularizer,
    Cost,
    Data,
    Examples,
    RemoveData,
    SolverError,
    State,
    adapt,
    train,
)
from core.kprior import Task as Change
from core.kprior.curvature import is_wide
from core.kprior.passes.moments import encoder_fits
from core.kprior.training import Result
from core.ledger import passes
from core.ledger.digest import Digesting, changed
from core.models.table import Model
from core.versions import history
from core.versions.evaluation import evaluate
from core.versions.store import Stored
from core.versions.tables import Version, VersionKind, VersionState
from worker.certificates import certificate_json, certify_version, clear_of_erased, must_certify, sufficient
from worker.extremes import describe_extremes, find_extremes
from worker.outdated import Outdated, knows_erased
from worker.sharing import Kept, Reading
from worker.subject import Subject, Unadaptable, rows
from worker.task import Progress, Task
from worker.together import solver_of

log = structlog.get_logger("worker")

NUMERICAL = (ArithmeticError, torch.linalg.LinAlgError)  # type: ignore[attr-defined]
"""What the engine and the libraries below it raise when numbers do not allow an answer."""
LOSS_FACTOR, LOSS_SLACK = 1.25, 0.02
"""How much more a version without a bound may lose on the holdout than the version before it."""
FIRST = 1
"""The version that the model would still be, had nothing been done."""


@dataclass(frozen=True)
class Made:
    """A version that is not recorded yet."""

    state: State
    kind: VersionKind
    parent: int | None
    since: int
    position: int
    dataset: str
    cost: Cost
    certificate: dict[str, Any] | None
    metrics: dict[str, Any]
    evaluation: dict[str, Any]
    method: str = "retrain"
    """"kprior", "warm" or "retrain"."""
    why: str = ""
    """Why cheaper ways were not taken."""
    erasing: bool = False
    """Whether it was known that people are being erased."""
    candidates: tuple[dict[str, Any], ...] = ()
    """All that were tried, with what each took and why it was not taken: what the next job plans with."""

    def record(self, task: Task, session: Session, model: Model, job: Job, stored: Stored) -> Version:
        """Note it as the model's next version; Outdated if it knows a person who was erased meanwhile."""
        if knows_erased(session, model.id, self.position) or self.position > model.head:
            raise Outdated  # or a crash of the database took the last changes back, which nobody had been told of
        if not self.erasing and open_parts(session, model.id):
            raise Outdated  # whoever asked meanwhile needs a version with a certificate
        task.claim(session, stored)
        job.from_position, job.to_position = self.since, self.position
        version = history.record(
            session,
            model,
            self.state,
            stored,
            kind=self.kind,
            parent=self.parent,
            position=self.position,
            dataset=self.dataset,
            cost=self.cost,
            metrics=self.metrics,
            evaluation={**self.evaluation, "candidates": list(self.candidates)} if self.candidates else self.evaluation,
            certificate=self.certificate,
            method=self.method,
            job_id=job.id,
        )
        job.version = version.number
        return version


@dataclass(frozen=True)
class Changes:
    """A version, and what came and went after it."""

    parent: State
    memory: Examples
    """The rows that the parent's memory refers to."""
    added: Data
    removed: Data
    dataset: str
    """The digest of what is in force after them."""
    cost: Cost
    """Of passes that were made to find out."""

    @property
    def tasks(self) -> list[Change]:
        return [AddData(self.added), RemoveData(self.removed)]


def changes_since(task: Task, subject: Subject, tip: Version) -> Changes:
    """What the tip lacks; Unadaptable if that is not known any more, or nothing can be built on it."""
    task.progress(0.02, "reading what changed")
    parent = subject.load(tip)
    database, at = subject.context.database, subject.at
    added = passes.held(passes.added(database, subject.model_id, subject.spec, tip.position, at))
    removed = passes.held(passes.removed(database, subject.model_id, subject.spec, tip.position, at))
    if parent.count + rows(added) - rows(removed) != subject.count:
        raise Unadaptable("examples that the version before stands for are purged")
    cost = Cost()
    if subject.erasing or (subject.removal and rows(removed)):
        cost.data_passes += bool(parent.predictor.encoder.state_dict())
        reading = Reading(task, subject.in_force(), task.part(0.02, 0.05), "reading the examples")
        if not encoder_fits(parent.predictor.encoder, reading):
            raise Unadaptable("the units of its columns are not those of the examples that are left")
    dataset = changed(subject.secret, tip.dataset, added, removed)
    return Changes(parent, subject.remembered(parent), added, removed, dataset, cost)


def adapted(task: Task, subject: Subject, tip: Version) -> tuple[Made, str]:
    """Adapt the tip to all changes after it, to a linear model; and why the result will not do, if it will not.

    Reads the changes, the memory and the holdout; the past itself only for the certificate.
    """
    start = time.perf_counter()
    changes = changes_since(task, subject, tip)
    parent, memory = changes.parent, changes.memory
    if subject.erasing and is_wide(parent.predictor):
        raise Unadaptable("a model of so many weights knows nothing of who is erased only if it is trained anew")
    if tip.position == subject.at:  # all that is wanted is a certificate
        result = Result(parent, memory, Cost(), True)
    else:
        asks = subject.policy.certify != "never"
        result = adapt(
            parent,
            memory,
            [*changes.tasks, *spec_changes(subject, parent)],
            training=subject.training,
            policy=subject.memory,
            look_at=subject.holdout if asks else (),
            progress=task.part(0.05, 0.5),
            watch=subject.watch(task.part(0.05, 0.5)),
        )
    state, cost, certificate = result.state, result.cost + changes.cost, None
    if subject.erasing:
        state, cost, certificate = clear_of_erased(task, subject, result, cost)
    elif must_certify(subject, state, bool(rows(changes.removed))):
        state, cost, certificate = certify_version(task, subject, result, cost)
    cost = replace(cost, seconds=time.perf_counter() - start)
    made = completed(task, subject, "kprior", changes.dataset, state, cost, certificate)
    if certificate is None and worse(subject, parent, made):
        return made, "the adapted model did worse on the holdout than the version before"
    return made, "" if sufficient(subject, certificate) else "the bound stayed above the tolerance"


def worse(subject: Subject, parent: State, made: Made) -> bool:
    """Whether a version without a bound lost more on the holdout than chance would have it: nothing done is better."""
    before = evaluate([parent], subject.holdout)[0].metrics
    if "loss" not in before:
        return False
    return not made.metrics.get("loss", math.inf) <= LOSS_FACTOR * before["loss"] + LOSS_SLACK


def spec_changes(subject: Subject, parent: State) -> list[Change]:
    """What became of the regularizer and the architecture."""
    changes: list[Change] = []
    if parent.spec["regularizer"] != subject.spec["regularizer"]:
        changes.append(ChangeRegularizer(subject.spec["regularizer"]))
    if parent.spec["architecture"] != subject.spec["architecture"]:
        changes.append(ChangeModel(subject.spec["architecture"]))
        if subject.removal is not None:
            raise Unadaptable("certified removal needs a new perturbation for a new architecture")
    return changes


def from_scratch(
    task: Task,
    subject: Subject,
    progress: Progress,
    encoder_of: State | None = None,
    start_from: State | None = None,
) -> Made:
    """Train on all examples in force. With the encoder of an earlier state both mean the same by a weight.

    From the weights of an earlier network it is a warm descent.
    """
    start = time.perf_counter()

    def at_first(share: float, phrase: str) -> None:
        progress(0.05 * share, phrase)

    def inside(share: float, phrase: str) -> None:
        progress(0.05 + 0.9 * share, phrase)

    reading = Reading(task, subject.in_force(), at_first, "reading the examples")
    data = Digesting(subject.secret, reading)
    try:
        result = train(
            subject.spec,
            data,
            training=subject.training,
            policy=subject.memory,
            encoder_of=encoder_of,
            start=start_from,
            removal=subject.removal,
            device=subject.context.device,
            progress=inside,
            watch=subject.watch(inside),
            solver=solver_of(subject),
        )
    except NUMERICAL as error:
        words = str(error) if isinstance(error, SolverError) else "no model could be computed"
        raise SolverError(words + describe_extremes(find_extremes(subject.in_force()))) from error
    assert data.digest is not None
    reading.kept = Kept()  # the certificate's pass keeps rows of its own
    state, cost, certificate = result.state, result.cost, None
    if state.predictor.linear and must_certify(subject, state, False):
        state, cost, certificate = certify_version(task, subject, result, cost)
    cost = replace(cost, seconds=time.perf_counter() - start)
    method = "retrain" if start_from is None else "warm"
    return completed(task, subject, method, data.digest, state, cost, certificate)


def completed(
    task: Task,
    subject: Subject,
    method: str,
    dataset: str,
    state: State,
    cost: Cost,
    certificate: Certificate | None,
) -> Made:
    """The version with its figures on the holdout, next to those of the first version."""
    task.progress(0.9, "evaluating on the holdout")
    with subject.context.database.read() as session:
        first = session.get(Version, (subject.model_id, FIRST))
    before = subject.load_or_none(first) if first and first.state is not VersionState.PURGED else None
    ours, *frozen = evaluate([state] if before is None else [state, before], subject.holdout)
    kind = VersionKind.TRAINED if method == "retrain" else VersionKind.ADAPTED
    parent = subject.tip if kind is VersionKind.ADAPTED else None
    evaluation = ours.drawn()
    if frozen or first is None:
        evaluation["frozen"] = (frozen or [ours])[0].metrics
    return Made(
        state=state,
        kind=kind,
        parent=parent.number if parent else None,
        since=parent.position if parent else 0,
        position=subject.at,
        dataset=dataset,
        cost=cost,
        certificate=certificate_json(certificate, subject),
        metrics=ours.metrics,
        evaluation=evaluation,
        method=method,
        erasing=subject.erasing,
    )
