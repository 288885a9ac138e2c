"""Making a version: by adaptation from its parent, or from scratch; certified and evaluated, not yet recorded.

`candidates.py` says which of them becomes the version.
"""

from __future__ import annotations

import math
import time
from dataclasses import dataclass, replace
from functools import reduce

import structlog
import torch

from core.kprior import (
    AddData,
    Certificate,
    ChangeInput,
    ChangeModel,
    ChangeRegularizer,
    ChangeTarget,
    Cost,
    Data,
    Examples,
    RemoveData,
    Result,
    SolverError,
    State,
    Task,
    adapt,
    adopt,
    train,
)
from core.kprior.adaptation.schema import Untransferable, change_schema
from core.kprior.curvature import is_wide
from core.kprior.passes.moments import encoder_fits
from core.ledger import passes
from core.ledger.digest import DigestedData, update_digest
from core.ledger.layouts import Step, Unreadable, steps_until
from core.tables.versions import Version, VersionKind, VersionState
from core.versions.evaluation import evaluate
from core.versions.history import VersionDraft
from core.versions.imports import Imported
from worker.attempt import JobAttempt, Progress
from worker.passes.shared import Reading, RowCache
from worker.training.group import solver_of
from worker.versions.certificates import (
    certificate_json,
    certify_version,
    is_sufficient,
    must_certify,
    refine_without_erased,
)
from worker.versions.extreme_examples import describe_extremes, find_extremes
from worker.versions.snapshot import ModelSnapshot, Unadaptable, count_rows

log = structlog.get_logger("worker")

NUMERICAL = (ArithmeticError, torch.linalg.LinAlgError)  # type: ignore[attr-defined]
"""What the engine and the libraries below it raise when numbers do not allow an answer."""
LOSS_FACTOR, LOSS_SLACK = 1.25, 0.02
"""How much more a version without a bound may lose on the holdout than the version before it."""
FIRST = 1
"""The version that the model would still be, had nothing been done."""


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
    def tasks(self) -> list[Task]:
        return [AddData(self.added), RemoveData(self.removed)]


def changes_since(attempt: JobAttempt, snapshot: ModelSnapshot, tip: Version) -> Changes:
    """What the tip lacks; Unadaptable if that is not known any more, or nothing can be built on it."""
    attempt.progress(0.02, "reading what changed")
    parent = snapshot.load(tip)
    database, at, cost = snapshot.context.database, snapshot.at, Cost()
    added = passes.load_if_small(passes.read_added(database, snapshot.model_id, snapshot.spec, tip.position, at))
    try:
        removed = passes.load_if_small(
            passes.read_removed(database, snapshot.model_id, snapshot.spec, tip.position, at)
        )
    except Unreadable as error:
        raise Unadaptable("examples of a class that is gone were removed") from error
    if parent.count + count_rows(added) - count_rows(removed) != snapshot.count:
        raise Unadaptable("examples that the version before stands for are purged")
    memory = snapshot.load_memory(parent, tip.position)
    if not snapshot.reads(parent):
        with cost.timed():
            parent, memory = follow_schema(snapshot, tip, parent, memory, added)
    if snapshot.erasing or (snapshot.removal and count_rows(removed)):
        cost.data_passes += bool(parent.predictor.encoder.state_dict())
        reading = Reading(attempt, snapshot.in_force(), attempt.part(0.02, 0.05), "reading the examples")
        if not encoder_fits(parent.predictor.encoder, reading):
            raise Unadaptable("the units of its columns are not those of the examples that are left")
    dataset = update_digest(snapshot.secret, tip.dataset, added, removed)
    return Changes(parent, memory, added, removed, dataset, cost)


def follow_schema(
    snapshot: ModelSnapshot, tip: Version, parent: State, memory: Examples, added: Data
) -> tuple[State, Examples]:
    """The tip and its memory in terms of the columns and classes that the model has now."""
    with snapshot.context.database.read() as session:
        steps = steps_until(session, snapshot.model_id, snapshot.at, tip.position)
    whole = reduce(Step.then, steps)
    tasks: list[Task] = [AddData(added)]
    if whole.input is not None and snapshot.spec["input"]["kind"] == "table":
        tasks.append(ChangeInput(snapshot.spec["input"], whole.input))
    if whole.target is not None:
        tasks.append(ChangeTarget(snapshot.spec["target"], whole.target))
    if parent.spec["regularizer"] != snapshot.spec["regularizer"]:
        tasks.append(ChangeRegularizer(snapshot.spec["regularizer"]))
    try:
        parent, memory = change_schema(parent, memory, tasks)
    except Untransferable as error:
        raise Unadaptable(f"its input or target changed: {error}") from error
    if not snapshot.reads(parent):
        raise Unadaptable("its input or target is another")
    return parent, memory


def adapt_tip(attempt: JobAttempt, snapshot: ModelSnapshot, tip: Version) -> tuple[VersionDraft, str]:
    """Adapt the tip to all changes after it, to a linear model; and why the result will not do, if it will not.

    Reads the changes, the memory and the holdout; the past itself only for the certificate.
    """
    start = time.perf_counter()
    changes = changes_since(attempt, snapshot, tip)
    parent, memory = changes.parent, changes.memory
    if snapshot.erasing and is_wide(parent.predictor):
        raise Unadaptable("a model of so many weights knows nothing of who is erased only if it is trained anew")
    if tip.position == snapshot.at:  # all that is wanted is a certificate
        result = Result(parent, memory, Cost(), True)
    else:
        asks = snapshot.policy.certify != "never"
        result = adapt(
            parent,
            memory,
            [*changes.tasks, *spec_changes(snapshot, parent)],
            training=snapshot.training,
            policy=snapshot.memory,
            holdout=snapshot.holdout if asks else (),
            progress=attempt.part(0.05, 0.5),
            watch=snapshot.watch(attempt.part(0.05, 0.5)),
        )
    state, cost, certificate = result.state, result.cost + changes.cost, None
    if snapshot.erasing:
        # what the adaptation took before depends on who is erased, and is not told
        state, cost, certificate = refine_without_erased(attempt, snapshot, result, changes.cost)
    elif must_certify(snapshot, state, bool(count_rows(changes.removed))):
        state, cost, certificate = certify_version(attempt, snapshot, result, cost)
    cost = replace(cost, seconds=time.perf_counter() - start)
    made = complete_draft(attempt, snapshot, "kprior", changes.dataset, state, cost, certificate)
    if certificate is None and worse(snapshot, parent, made):
        return made, "the adapted model did worse on the holdout than the version before"
    return made, "" if is_sufficient(snapshot, certificate) else "the bound stayed above the tolerance"


def worse(snapshot: ModelSnapshot, parent: State, made: VersionDraft) -> bool:
    """Whether a version without a bound lost more on the holdout than chance would have it: nothing done is better."""
    # of a parent that followed a change of columns or classes, that is what it says with what it does not know yet
    before = evaluate([parent], snapshot.holdout)[0].metrics
    if "loss" not in before:
        return False
    return not made.metrics.get("loss", math.inf) <= LOSS_FACTOR * before["loss"] + LOSS_SLACK


def spec_changes(snapshot: ModelSnapshot, parent: State) -> list[Task]:
    """What became of the regularizer and the architecture."""
    changes: list[Task] = []
    if parent.spec["regularizer"] != snapshot.spec["regularizer"]:
        changes.append(ChangeRegularizer(snapshot.spec["regularizer"]))
    if parent.spec["architecture"] != snapshot.spec["architecture"]:
        changes.append(ChangeModel(snapshot.spec["architecture"]))
        if snapshot.removal is not None:
            raise Unadaptable("certified removal needs a new perturbation for a new architecture")
    return changes


def train_draft(
    attempt: JobAttempt,
    snapshot: ModelSnapshot,
    progress: Progress,
    encoder_of: State | None = None,
    start_from: State | None = None,
) -> VersionDraft:
    """Train on all examples in force. With the encoder of an earlier state both mean the same by a weight.

    From the weights of an earlier network it is a warm descent.
    """
    start = time.perf_counter()

    def at_first(share: float, phrase: str) -> None:
        progress(0.05 * share, phrase)

    def inside(share: float, phrase: str) -> None:
        progress(0.05 + 0.9 * share, phrase)

    reading = Reading(attempt, snapshot.in_force(), at_first, "reading the examples")
    data = DigestedData(snapshot.secret, reading)
    try:
        result = train(
            snapshot.spec,
            data,
            training=snapshot.training,
            policy=snapshot.memory,
            encoder_of=encoder_of,
            start=start_from,
            certified_removal=snapshot.removal,
            device=snapshot.context.device,
            progress=inside,
            watch=snapshot.watch(inside),
            solver=solver_of(snapshot),
        )
    except NUMERICAL as error:
        words = str(error) if isinstance(error, SolverError) else "no model could be computed"
        raise SolverError(words + describe_extremes(find_extremes(snapshot.in_force()))) from error
    assert data.digest is not None
    reading.cache = RowCache()  # the certificate's pass keeps rows of its own
    state, cost, certificate = result.state, result.cost, None
    if state.predictor.linear and must_certify(snapshot, state, False):
        state, cost, certificate = certify_version(attempt, snapshot, result, cost)
    cost = replace(cost, seconds=time.perf_counter() - start)
    method = "retrain" if start_from is None else "warm"
    return complete_draft(attempt, snapshot, method, data.digest, state, cost, certificate)


def import_draft(attempt: JobAttempt, snapshot: ModelSnapshot, imported: Imported) -> VersionDraft:
    """The first version at weights that somebody else found: one pass measures the examples there.

    Where the policy asks for a certificate and the weights are further from the optimum than it allows, they are
    refined.
    """
    start = time.perf_counter()
    reading = Reading(attempt, snapshot.in_force(), attempt.part(0, 0.5), "measuring the imported weights")
    data = DigestedData(snapshot.secret, reading)
    result = adopt(
        snapshot.spec,
        imported.w,
        data,
        snapshot.count,
        units=imported.units,
        training=snapshot.training,
        policy=snapshot.memory,
        device=snapshot.context.device,
    )
    assert data.digest is not None
    state, cost, certificate = result.state, result.cost, None
    if state.predictor.linear and must_certify(snapshot, state, False):
        state, cost, certificate = certify_version(attempt, snapshot, result, cost)
    cost = replace(cost, seconds=time.perf_counter() - start)
    return complete_draft(attempt, snapshot, "imported", data.digest, state, cost, certificate)


def complete_draft(
    attempt: JobAttempt,
    snapshot: ModelSnapshot,
    method: str,
    dataset: str,
    state: State,
    cost: Cost,
    certificate: Certificate | None,
) -> VersionDraft:
    """The version with its figures on the holdout, next to those of the first version."""
    attempt.progress(0.9, "evaluating on the holdout")
    with snapshot.context.database.read() as session:
        first = session.get(Version, (snapshot.model_id, FIRST))
    before = snapshot.load_or_none(first) if first and first.state is not VersionState.PURGED else None
    if before is not None and not snapshot.reads(before):
        before = None  # it knows nothing of the columns or classes that there are now
    ours, *frozen = evaluate([state] if before is None else [state, before], snapshot.holdout)
    kind = VersionKind.TRAINED if method in ("retrain", "imported") else VersionKind.ADAPTED
    parent = snapshot.tip if kind is VersionKind.ADAPTED else None
    evaluation = ours.drawn()
    if frozen or first is None:
        evaluation["frozen"] = (frozen or [ours])[0].metrics
    return VersionDraft(
        state=state,
        kind=kind,
        parent=parent.number if parent else None,
        since=parent.position if parent else 0,
        position=snapshot.at,
        dataset=dataset,
        cost=cost,
        certificate=certificate_json(certificate, snapshot),
        metrics=ours.metrics,
        evaluation=evaluation,
        method=method,
        erasing=snapshot.erasing,
    )
