"""Making a version: by adaptation from its parent, or from scratch; certified and evaluated, not yet recorded."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from typing import Any

import structlog
import torch
from sqlalchemy import select
from sqlalchemy.orm import Session
from torch import Tensor

from core.erasure.tables import OPEN, Erasure, ErasureState, Part
from core.jobs.tables import Job
from core.kprior import (
    AddData,
    Certificate,
    ChangeModel,
    ChangeRegularizer,
    Cost,
    Data,
    Examples,
    MemoryPolicy,
    RemoveData,
    State,
    Training,
    adapt,
    certify,
    refine,
    train,
)
from core.kprior import Task as Change
from core.kprior.certificate import within
from core.kprior.curvature import FULL_LIMIT
from core.kprior.solvers import Watch
from core.ledger import passes
from core.ledger.digest import Digesting, changed
from core.models.policy import Policy
from core.models.table import Model
from core.versions import history
from core.versions.evaluation import evaluate
from core.versions.store import Stored
from core.versions.tables import Version, VersionKind, VersionState
from worker.context import Context
from worker.task import Progress, Task

log = structlog.get_logger("worker")

ROUNDS = 5
"""Passes over the data that refinements may take before a retrain, which takes about eight, is the better way."""
NUMERICAL = (ArithmeticError, torch.linalg.LinAlgError)  # type: ignore[attr-defined]
"""What the engine and the libraries below it raise when numbers do not allow an answer."""
FIRST = 1
"""The version that the model would still be, had nothing been done."""


@dataclass(frozen=True)
class Subject:
    """The model that a job is about, as it stands when the work begins."""

    context: Context
    model_id: int
    spec: dict[str, Any]
    """At `at`."""
    at: int
    """The position that the new version shall stand for."""
    policy: Policy
    memory: MemoryPolicy
    training: Training
    count: int
    """Training examples."""
    tip: Version | None
    erasing: bool
    """Whether people are being erased: then a certificate is needed, whatever the policy."""

    @classmethod
    def of(cls, context: Context, session: Session, model: Model, at: int) -> Subject:
        policy = Policy.model_validate(model.policy)
        return cls(
            context,
            model.id,
            passes.spec_at(session, model.id, model.spec, at),
            at,
            policy,
            MemoryPolicy(**policy.memory.model_dump()),
            Training(**model.training),
            model.train_count,
            session.get(Version, (model.id, model.tip)) if model.tip else None,
            session.scalar(select(Part.model_id).where(Part.model_id == model.id, Part.state.in_(OPEN)).limit(1))
            is not None,
        )

    def in_force(self, holdout: bool = False) -> passes.Pass:
        return passes.in_force(self.context.database, self.model_id, self.spec, self.at, holdout)

    def watch(self, progress: Progress) -> Watch:
        """Tells how far a network's training is between its epochs, too; it stops when told to."""
        most = max(1, self.count) * self.training.max_epochs

        def look(backward_passes: int, _w: Tensor) -> bool:
            progress(min(1.0, backward_passes / most), f"training: {backward_passes} gradients so far")
            return False

        return look

    def load(self, version: Version) -> State:
        """A version's state, on the device of this process."""
        return State.from_bytes(self.context.store.get(version.file, version.sha256), self.context.device)

    def remembered(self, state: State) -> Examples:
        """The examples that a state's memory refers to."""
        with self.context.database.read() as session:
            found = passes.by_position(session, self.model_id, self.spec, state.memory.key.tolist())
        if len(found) < len(state.memory):
            raise Gone
        return found


class Gone(Exception):
    """Examples that an old version stands for are purged: it cannot be adapted from any more."""


class Outdated(Exception):
    """What was made must not be recorded: another version became the tip, or a person was erased meanwhile."""


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
    why: str = ""
    """Why it was trained where it should have been adapted."""

    def record(self, task: Task, session: Session, model: Model, job: Job, stored: Stored) -> Version:
        """Note it as the model's next version; Outdated if it knows a person who was erased meanwhile."""
        knows = (Part.model_id == model.id, Part.first <= self.position, Part.removed > self.position)
        refused = Erasure.state == ErasureState.REFUSED
        query = select(Part.model_id).join(Erasure, Erasure.id == Part.erasure_id).where(*knows, ~refused)
        if session.scalar(query.limit(1)) is not None:
            raise Outdated
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
            evaluation=self.evaluation,
            certificate=self.certificate,
            job_id=job.id,
        )
        job.version = version.number
        return version


def next_version(task: Task, subject: Subject) -> Made:
    """The version that stands for the ledger up to `at`: adapted from the tip, or trained if that will not do."""
    if subject.tip is None:
        return from_scratch(task, subject, task.part(0, 0.9))
    parent = subject.load(subject.tip)
    try:
        made, sufficient = adapted(task, subject, subject.tip, parent)
        if sufficient:
            return made
        why = "the bound stayed above the tolerance"
    except Gone:
        why = "examples that the version before stood for are purged"
    except NUMERICAL as error:
        why = f"the adaptation could not be computed ({type(error).__name__})"
    log.info("the adaptation gives way to a retrain", job=task.job_id, reason=why)
    return replace(from_scratch(task, subject, task.part(0.5, 0.9)), why=why)


def adapted(task: Task, subject: Subject, tip: Version, parent: State) -> tuple[Made, bool]:
    """Adapt the tip to all changes after it, and whether the result is as near to a retrain as the policy asks.

    Reads the changes, the memory and the holdout; the past itself only for the certificate.
    """
    task.progress(0.02, "reading what changed")
    database, at = subject.context.database, subject.at
    added = passes.held(passes.added(database, subject.model_id, subject.spec, tip.position, at))
    removed = passes.held(passes.removed(database, subject.model_id, subject.spec, tip.position, at))
    changes: list[Change] = [AddData(added), RemoveData(removed)]
    if parent.spec["regularizer"] != subject.spec["regularizer"]:
        changes.append(ChangeRegularizer(subject.spec["regularizer"]))
    if parent.spec["architecture"] != subject.spec["architecture"]:
        changes.append(ChangeModel(subject.spec["architecture"]))
    if parent.count + rows(added) - rows(removed) != subject.count:
        raise Gone
    dataset = changed(tip.dataset, added, removed)
    result = adapt(
        parent,
        subject.remembered(parent),
        changes,
        training=subject.training,
        policy=subject.memory,
        progress=task.part(0.05, 0.5),
        watch=subject.watch(task.part(0.05, 0.5)),
    )
    state, cost, certificate = result.state, result.cost, None
    wanted = subject.policy.certify
    if wanted == "always" or subject.erasing or (wanted == "removals" and rows(removed)):
        state, cost, certificate = certified(task, subject, state, result.memory, cost)
    tolerance = subject.policy.tolerance.relative_bound
    sufficient = certificate is None or certificate.kind != "bound" or within(certificate, tolerance)
    return completed(task, subject, VersionKind.ADAPTED, dataset, state, cost, certificate), sufficient


def certified(
    task: Task, subject: Subject, state: State, memory: Examples, cost: Cost
) -> tuple[State, Cost, Certificate]:
    """The certificate, after as many refinements as it takes or `ROUNDS` allow: one pass over the data each."""
    tolerance = subject.policy.tolerance.relative_bound
    data = Watched(subject.in_force(), subject.at, task.part(0.5, 0.85), "certifying: a pass over all examples")
    holdout = subject.in_force(holdout=True)
    measured = refine(state, memory, data, tolerance=tolerance, rounds=ROUNDS, look_at=holdout)
    spent = measured.cost
    large = state.predictor.linear and state.predictor.size > FULL_LIMIT
    while large and spent.data_passes < ROUNDS and not within(measured.certificate, tolerance):
        # no Newton step is known: K around the measured gradient is the next refinement
        whole = MemoryPolicy(1.0, cap=max(1, len(memory)))
        again = adapt(measured.state, memory, [], training=subject.training, policy=whole)
        measured = certify(again.state, again.memory, data, look_at=holdout)
        memory, spent = again.memory, spent + again.cost + measured.cost
    return measured.state, cost + spent, replace(measured.certificate, passes=spent.data_passes)


def from_scratch(task: Task, subject: Subject, progress: Progress, encoder_of: State | None = None) -> Made:
    """Train on all examples in force. With the encoder of an earlier state both mean the same by a weight."""
    data = Digesting(subject.in_force())
    result = train(
        subject.spec,
        Watched(data, subject.at, lambda share, phrase: progress(0.05 * share, phrase), "reading the examples"),
        training=subject.training,
        policy=subject.memory,
        encoder_of=encoder_of,
        device=subject.context.device,
        progress=lambda share, phrase: progress(0.05 + 0.9 * share, phrase),
        watch=subject.watch(lambda share, phrase: progress(0.05 + 0.9 * share, phrase)),
    )
    assert data.digest is not None
    state, cost, certificate = result.state, result.cost, None
    if subject.policy.certify == "always" and state.predictor.linear:
        state, cost, certificate = certified(task, subject, state, result.memory, cost)
    return completed(task, subject, VersionKind.TRAINED, data.digest, state, cost, certificate)


def completed(
    task: Task,
    subject: Subject,
    kind: VersionKind,
    dataset: str,
    state: State,
    cost: Cost,
    certificate: Certificate | None,
) -> Made:
    """The version with its figures on the holdout, next to those of the first version."""
    task.progress(0.9, "evaluating on the holdout")
    with subject.context.database.read() as session:
        first = session.get(Version, (subject.model_id, FIRST))
    compared = [state]
    if first is not None and first.state is not VersionState.PURGED:
        compared.append(subject.load(first))
    ours, *frozen = evaluate(compared, subject.in_force(holdout=True))
    parent = subject.tip if kind is VersionKind.ADAPTED else None
    return Made(
        state=state,
        kind=kind,
        parent=parent.number if parent else None,
        since=parent.position if parent else 0,
        position=subject.at,
        dataset=dataset,
        cost=cost,
        certificate=plain(certificate),
        metrics=ours.metrics,
        evaluation={**ours.drawn(), "frozen": (frozen or [ours])[0].metrics},
    )


def plain(certificate: Certificate | None) -> dict[str, Any] | None:
    """A certificate as JSON can say it: what is infinite is not known."""
    if certificate is None:
        return None
    values = asdict(certificate).items()
    return {name: None if isinstance(v, float) and not math.isfinite(v) else v for name, v in values}


def rows(data: Data) -> int:
    return sum(len(chunk) for chunk in data)


class Watched:
    """Data whose reader tells how far it is, and stops when told to."""

    def __init__(self, data: Data, at: int, progress: Progress, phrase: str) -> None:
        self.data, self.at, self.progress, self.phrase = data, at, progress, phrase

    def __iter__(self) -> Iterator[Examples]:
        for chunk in self.data:
            self.progress(float(chunk.key[-1]) / self.at, self.phrase)
            yield chunk
