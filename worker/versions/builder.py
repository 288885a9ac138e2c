"""Creates drafts of versions by adaptation or training: certified and evaluated, but not yet recorded.

`method_choice.py` decides which of these functions is called.
"""

import math
import time
from dataclasses import replace

import structlog
import torch

from core.kprior import Cost, Result, SolverError, State, adapt, adopt, train
from core.kprior.adaptation.schema import Untransferable
from core.kprior.curvature import is_wide
from core.kprior.model.spec import loss_of
from core.kprior.training.training import Execution, Predecessor
from core.ledger.digest import DigestedData
from core.ledger.holdout_sample import SampledRows
from core.quality.evaluation import Evaluation, evaluate
from core.quality.scored_rows import MetricOptions
from core.tables.versions import FIRST, Version, VersionKind, VersionState
from core.versions.history import VersionDraft
from core.versions.imports import Imported
from worker.attempt import JobAttempt, Progress
from worker.reading import Reading
from worker.versions.certificates import certify_if_needed, is_sufficient, publishable, refine_without_erased
from worker.versions.changes import changes_since, spec_changes
from worker.versions.extreme_examples import describe_extremes, find_extremes
from worker.versions.snapshot import ModelSnapshot, Unadaptable, count_rows

log = structlog.get_logger("worker")

NUMERICAL_ERRORS = (ArithmeticError, torch.linalg.LinAlgError)  # type: ignore[attr-defined]
"""Errors that the engine and its libraries raise when no model can be computed from the numbers."""
LOSS_FACTOR, LOSS_SLACK = 1.25, 0.02
"""How much larger the holdout loss of a version without a bound may be than its parent's: factor and slack."""


def adapt_tip(attempt: JobAttempt, snapshot: ModelSnapshot, tip: Version) -> tuple[VersionDraft, str]:
    """Adapt the tip, a linear model, to all changes after it.

    Reads the changes, the memory and the holdout; the past itself only for the certificate. Returns the draft, and the
    reason why it must not become a version; "" if it may.
    """
    start = time.perf_counter()
    changes = changes_since(attempt, snapshot, tip)
    parent, memory = changes.parent, changes.memory
    if snapshot.erasing and is_wide(parent.predictor):
        raise Unadaptable("a model with this many weights must be retrained to forget erased data")
    if tip.position == snapshot.at:  # only a certificate is missing
        result = Result(parent, memory, Cost(), True)
    else:
        asks = snapshot.policy.certify != "never"
        try:
            result = adapt(
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
    if snapshot.erasing:
        result = refine_without_erased(attempt, snapshot, result, changes.cost)
    else:
        result = replace(result, cost=result.cost + changes.cost)
        result = certify_if_needed(attempt, snapshot, result, removes=bool(count_rows(changes.removed)))
    draft = complete_draft(attempt, snapshot, "kprior", changes.dataset_digest, with_seconds(result, start))
    if result.certificate is None and is_worse(snapshot, parent, draft):
        return draft, "the adapted model was worse on the holdout than the previous version"
    return draft, "" if is_sufficient(snapshot, result.certificate) else "the bound stayed above the tolerance"


def is_worse(snapshot: ModelSnapshot, parent: State, draft: VersionDraft) -> bool:
    """Whether the holdout loss of a draft without a bound is larger than its parent's beyond chance."""
    # a parent from before a change of columns, classes or loss predicts without the new ones
    before = evaluate([parent], snapshot.holdout, MetricOptions.of(snapshot.policy))[0].metrics
    if "loss" not in before:
        return False
    return not draft.metrics.get("loss", math.inf) <= LOSS_FACTOR * before["loss"] + LOSS_SLACK


def train_draft(
    attempt: JobAttempt,
    snapshot: ModelSnapshot,
    progress: Progress,
    encoder_of: State | None = None,
    start_from: State | None = None,
) -> VersionDraft:
    """Train on all examples in force.

    The encoder of `encoder_of` is reused, so that the weights are comparable. A network starts from `start_from`, if
    given.
    """
    start = time.perf_counter()

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
    result = with_seconds(certify_if_needed(attempt, snapshot, result), start)
    method = "retrain" if start_from is None else "warm"
    return complete_draft(attempt, snapshot, method, data.digest, result)


def import_draft(attempt: JobAttempt, snapshot: ModelSnapshot, imported: Imported) -> VersionDraft:
    """The first version, from imported weights, with one pass over the examples.

    If the policy requires a certificate and the weights are too far from the optimum, they are refined; if that does
    not suffice, the model is trained on the examples.
    """
    start = time.perf_counter()
    reading = Reading(attempt, snapshot.in_force(), attempt.progress_within(0, 0.5), "Measuring the imported weights")
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
    certified = certify_if_needed(attempt, snapshot, result)
    if not is_sufficient(snapshot, certified.certificate):
        draft = train_draft(attempt, snapshot, attempt.progress_within(0.5, 0.9), encoder_of=result.state)
        why = "the imported weights were too far from the optimum for these examples to be refined"
        return replace(draft, cost=certified.cost + draft.cost, why=why)
    return complete_draft(attempt, snapshot, "imported", data.digest, with_seconds(certified, start))


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
    ours, *frozen = evaluate(states, holdout, MetricOptions.of(snapshot.policy))
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
        dataset_digest=dataset,
        cost=result.cost,
        certificate=publishable(result.certificate, snapshot),
        metrics=ours.metrics,
        evaluation=evaluation,
        method=method,
        erasing=snapshot.erasing,
    )
