"""Creates drafts of versions by adaptation or training: certified and evaluated, but not yet recorded.

`method_choice.py` decides which of these functions is called.
"""

import math
import time
from dataclasses import replace

import torch

from core.kprior import Cost, Predictor, Result, SolverError, State, adapt, adopt, certify, train
from core.kprior.adaptation.schema import Untransferable
from core.kprior.curvature import is_wide
from core.kprior.model.spec import loss_of
from core.kprior.training.training import Execution, Predecessor
from core.ledger.digest import DigestedData
from core.ledger.holdout_sample import SampledRows
from core.quality.evaluation import Evaluation, evaluate
from core.quality.loss_limits import is_worse_without_bound
from core.quality.scored_rows import MetricOptions
from core.tables.versions import FIRST, Version, VersionKind, VersionState
from core.versions.drafts import VersionDraft
from core.versions.imported_weights import Imported
from worker.example_reading import Reading
from worker.job_attempt import JobAttempt, Progress
from worker.versions.certificates import (
    certify_if_needed,
    is_sufficient,
    must_certify,
    publishable,
    refine_without_erased,
)
from worker.versions.changes import Changes, changes_since, spec_changes
from worker.versions.column_units import find_units
from worker.versions.extreme_examples import describe_extremes, find_extremes
from worker.versions.snapshot import ModelSnapshot, Unadaptable, count_rows

NUMERICAL_ERRORS = (ArithmeticError, torch.linalg.LinAlgError)  # type: ignore[attr-defined]
"""Errors that the engine and its libraries raise when no model can be computed from the numbers."""


def adapt_tip(attempt: JobAttempt, snapshot: ModelSnapshot, tip: Version) -> tuple[VersionDraft, str]:
    """Adapt the tip, a linear model, to all changes after it.

    Reads the changes, the memory and the holdout; the past itself only for the certificate. Returns the draft, and the
    reason why it must not become a version; "" if it may.
    """
    start = time.perf_counter()
    if snapshot.erasing:
        return forget_erased(attempt, snapshot, tip)
    changes = changes_since(attempt, snapshot, tip)
    result = adapt_to(attempt, snapshot, tip, changes)
    result = replace(result, cost=result.cost + changes.cost)
    result = certify_if_needed(attempt, snapshot, result, removes=bool(count_rows(changes.removed)))
    draft = complete_draft(attempt, snapshot, "kprior", changes.dataset_digest, with_seconds(result, start))
    why = describe_bound(snapshot, result)
    if why and snapshot.removal is None and snapshot.lacks_optimum:
        why = ""  # a retrain would have no bound either
        result = replace(result, certificate=None)
    if result.certificate is None and is_worse(snapshot, changes.parent, draft):
        return draft, "the adapted model was worse on the holdout than the previous version"
    return draft, why


def describe_bound(snapshot: ModelSnapshot, result: Result) -> str:
    """Why the certificate of a result is not sufficient; "" if it is."""
    return "" if is_sufficient(snapshot, result.certificate) else "the bound stayed above the tolerance"


def adapt_to(attempt: JobAttempt, snapshot: ModelSnapshot, tip: Version, changes: Changes) -> Result:
    """The tip, a linear model, adapted to changes, without a pass over the past."""
    parent, memory = changes.parent, changes.memory
    if tip.position == snapshot.at:  # only a certificate is missing
        return Result(parent, memory, Cost(), True)
    asks = snapshot.policy.certify != "never"
    try:
        return adapt(
            parent,
            memory,
            [*changes.tasks, *spec_changes(snapshot, parent)],
            training=snapshot.training,
            policy=snapshot.memory,
            holdout=snapshot.holdout if asks else (),
            progress=attempt.progress_within(0.05, 0.5),
        )
    except Untransferable as error:
        raise Unadaptable(f"its loss changed: {error}") from error


def forget_erased(attempt: JobAttempt, snapshot: ModelSnapshot, tip: Version) -> tuple[VersionDraft, str]:
    """The version of a linear model that does not depend on erased data; as `adapt_tip`.

    The adapted tip is only a start, and the refinement leads to the same bytes from every start. Where the tip cannot
    be adapted, which may be due to the erased data, the start is a training; the version does not say which it was.
    """
    start, cost = time.perf_counter(), Cost()
    if snapshot.spec["architecture"]["kind"] == "trees":
        raise Unadaptable("the splits were learnt from the erased data")
    if is_wide(Predictor(snapshot.spec)):
        raise Unadaptable("a model with this many weights must be retrained to forget erased data")
    try:
        changes = changes_since(attempt, snapshot, tip)
        result, dataset = adapt_to(attempt, snapshot, tip, changes), changes.dataset_digest
    except (Unadaptable, *NUMERICAL_ERRORS):
        if snapshot.removal is not None:
            raise  # a training draws another perturbation
        progress = attempt.progress_within(0.05, 0.5)
        result, dataset = train_on_all(attempt, snapshot, progress, encoder_of=find_units(snapshot))
    cost.data_passes += bool(result.state.predictor.encoder.state_dict())  # the pass that measures the units
    result = refine_without_erased(attempt, snapshot, result, cost)
    draft = complete_draft(attempt, snapshot, "kprior", dataset, with_seconds(result, start))
    return draft, describe_bound(snapshot, result)


def is_worse(snapshot: ModelSnapshot, parent: State, draft: VersionDraft) -> bool:
    """Whether the holdout loss of a draft without a bound is larger than its parent's beyond chance."""
    # a parent from before a change of columns, classes or loss predicts without the new ones
    before = evaluate([parent], snapshot.holdout, MetricOptions.of(snapshot.policy))[0].metrics
    return "loss" in before and is_worse_without_bound(before["loss"], draft.metrics.get("loss", math.inf))


def train_draft(
    attempt: JobAttempt,
    snapshot: ModelSnapshot,
    progress: Progress,
    encoder_of: State | None = None,
    start_from: State | None = None,
) -> VersionDraft:
    """Train on all examples in force; as `train_on_all`."""
    start = time.perf_counter()
    result, dataset = train_on_all(attempt, snapshot, progress, encoder_of, start_from)
    result = with_seconds(certify_if_needed(attempt, snapshot, result), start)
    return complete_draft(attempt, snapshot, "retrain" if start_from is None else "warm", dataset, result)


def train_on_all(
    attempt: JobAttempt,
    snapshot: ModelSnapshot,
    progress: Progress,
    encoder_of: State | None = None,
    start_from: State | None = None,
) -> tuple[Result, str]:
    """Train on all examples in force; returns the result and the digest of the examples.

    The encoder of `encoder_of` is reused, so that the weights are comparable. The training starts from the weights of
    `start_from`, if given: a network's, or those of the same linear model with another frozen encoder.
    """

    def report_reading(fraction: float, phrase: str) -> None:
        progress(0.05 * fraction, phrase)

    def report_training(fraction: float, phrase: str) -> None:
        progress(0.05 + 0.9 * fraction, phrase)

    reading = Reading(attempt, snapshot.in_force(), report_reading, "Reading the examples")
    data = DigestedData(snapshot.secret, reading)
    before = encoder_of or start_from
    try:
        result = train(
            snapshot.spec,
            data,
            training=snapshot.training,
            policy=snapshot.memory,
            predecessor=None if before is None else Predecessor(before, warm=start_from is not None),
            certified_removal=snapshot.removal,
            execution=Execution(
                device=snapshot.context.device,
                progress=report_training,
                watch=snapshot.watch(report_training),
                solver=snapshot.context.executor.solver_for(snapshot),
            ),
        )
    except NUMERICAL_ERRORS as error:
        message = str(error) if isinstance(error, SolverError) else "No model could be computed."
        raise SolverError(message + describe_extremes(find_extremes(snapshot.in_force()))) from error
    assert data.digest is not None
    return result, data.digest


def import_draft(attempt: JobAttempt, snapshot: ModelSnapshot, imported: Imported) -> VersionDraft:
    """The first version, from imported weights, with one pass over the examples.

    Its weights stay as they are, so that it predicts what the imported model predicted. The certificate says how far
    they are from the optimum, which the next adaptation starts from.
    """
    start = time.perf_counter()
    reading = Reading(attempt, snapshot.in_force(), attempt.progress_within(0, 0.5), "Measuring the imported weights")
    data = DigestedData(snapshot.secret, reading)
    w = torch.zeros(Predictor(snapshot.spec).size, dtype=torch.float64) if imported.w is None else imported.w
    try:
        result = adopt(
            snapshot.spec,
            w,
            data,
            snapshot.count,
            units=imported.units or imported.splits or imported.buffers,
            training=snapshot.training,
            policy=snapshot.memory,
            device=snapshot.context.device,
        )
    except NUMERICAL_ERRORS:
        draft = train_draft(attempt, snapshot, attempt.progress_within(0.5, 0.9))
        return replace(draft, why="the predictions of the imported weights for these examples are not finite")
    assert data.digest is not None
    if imported.w is None:
        draft = train_draft(attempt, snapshot, attempt.progress_within(0.5, 0.9), encoder_of=result.state)
        why = "the head of the imported trees had to be trained"
        return replace(draft, method="imported", cost=result.cost + draft.cost, why=why)
    if result.certificate is None and must_certify(snapshot, result.state, False):
        again = Reading(attempt, snapshot.in_force(), attempt.progress_within(0.5, 0.85), "Measuring the distance")
        found = certify(result.state, result.memory, again, holdout=snapshot.holdout)
        cost = result.cost + found.cost
        result = replace(result, state=found.state, memory=found.memory, cost=cost, certificate=found.certificate)
    return complete_draft(attempt, snapshot, "imported", data.digest, with_seconds(result, start))


def frozen_metrics(frozen: Evaluation, ours: Evaluation) -> dict[str, float]:
    """Metrics of the first version, without its losses if the loss function has changed since."""
    same = loss_of(frozen.state.spec) == loss_of(ours.state.spec)
    return {name: value for name, value in frozen.metrics.items() if same or not name.startswith("loss")}


def with_seconds(result: Result, start: float) -> Result:
    """The result with the time since `start` as its cost in seconds."""
    return replace(result, cost=replace(result.cost, seconds=time.perf_counter() - start))


def complete_draft(
    attempt: JobAttempt, snapshot: ModelSnapshot, method: str, dataset: str, result: Result
) -> VersionDraft:
    """The draft of a version, evaluated on the holdout together with the first version."""
    attempt.progress(0.9, "Evaluating on the holdout")
    with snapshot.context.database.read() as session:
        first = session.get(Version, (snapshot.model_id, FIRST))
    before = snapshot.load_or_none(first) if first and first.state is not VersionState.PURGED else None
    if before is not None and not snapshot.has_schema_of(before):
        before = None  # the columns or classes have changed since
    holdout = snapshot.holdout
    if isinstance(holdout, SampledRows):  # too large for memory
        holdout = Reading(attempt, holdout, attempt.progress_within(0.9, 0.95), "Evaluating on the holdout")
    states = [result.state] if before is None else [result.state, before]
    ours, *frozen = snapshot.evaluate(states, holdout)
    kind = VersionKind.TRAINED if method in ("retrain", "imported") else VersionKind.ADAPTED
    parent = snapshot.tip if kind is VersionKind.ADAPTED else None
    evaluation = ours.chart_data()
    if frozen or first is None:
        evaluation["frozen"] = frozen_metrics(frozen[0], ours) if frozen else ours.metrics
    return VersionDraft(
        state=result.state,
        kind=kind,
        parent=parent.number if parent else None,
        since=parent.position if parent else 0,
        position=snapshot.at,
        removals_position=snapshot.removals_position,
        dataset_digest=dataset,
        cost=result.cost,
        certificate=publishable(result.certificate, snapshot),
        metrics=ours.metrics,
        evaluation=evaluation,
        method=method,
        erasing=snapshot.erasing,
    )
