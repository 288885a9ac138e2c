"""The job `analyse`: computes an analysis at the head of the ledger, from the tip and the changes after it.

It makes no version. Everything is computed again if the worker is killed, or if a person's data is erased meanwhile.
"""

from __future__ import annotations

import time
from typing import Any

import torch
from sqlalchemy.orm import Session
from torch import Tensor

from core.analyses import records, requests
from core.analyses.analysed_model import AnalysedModel
from core.analyses.cross_validation import report_cross_validation, report_leave_one_out, report_tuning
from core.analyses.influence import report_influence
from core.analyses.labelling import report_labelling
from core.analyses.preview import preview
from core.errors import Conflict, Unavailable
from core.jobs import leases, queue
from core.jobs.leases import JobLost
from core.kprior import Examples, State, train, what_if
from core.kprior.analyses.what_if import WhatIfOptions
from core.kprior.model.spec import is_network
from core.kprior.training.training import Execution
from core.ledger.random_rows import LedgerDraw
from core.ledger.spec_history import change_spec
from core.models.policy import policy_of
from core.tables.analyses import AnalysisKind
from core.tables.jobs import JobState
from core.tables.ledger import ChangeKind
from core.tables.models import Model
from core.tables.versions import Version
from core.versions.erased_examples import position_has_erased_examples
from worker.example_reading import Reading
from worker.job_attempt import JobAttempt, Outdated
from worker.versions.changes import changes_since, spec_changes
from worker.versions.encoding import encode_snapshot
from worker.versions.snapshot import ModelSnapshot, Unadaptable

Result = tuple[dict[str, Any], int]
"""The result of an analysis, and the number of passes that it made."""


def analyse(attempt: JobAttempt) -> None:
    """Compute the analysis of the job and store its result."""
    while True:
        with attempt.context.database.read() as session:
            model = session.get(Model, attempt.model_id)
            if model is None:
                raise JobLost
            snapshot = ModelSnapshot.of(attempt.context, session, model, model.head)
            analysis = records.find_of_job(session, attempt.job_id)
        if analysis is None:
            raise Conflict("analysis_deleted", "An erasure deleted the analysis. Request it again.")
        tip = snapshot.tip
        if tip is None:
            raise Conflict("champion_missing", "The model has no version yet. Train it with an adaptation.")
        if snapshot.erasing:
            raise Unavailable("erasure_in_progress", "Data of a person is being erased; the analysis waits for it.")
        start = time.perf_counter()
        try:
            snapshot = encode_snapshot(attempt, snapshot)
            result, passes = compute(attempt, snapshot, tip, AnalysisKind(analysis.kind), analysis.request)
        except Outdated:
            continue
        cost = {"seconds": time.perf_counter() - start, "data_passes": passes}
        with attempt.write() as (session, job, model):
            if position_has_erased_examples(session, model.id, snapshot.at):
                continue
            stored = records.find_of_job(session, attempt.job_id)
            if stored is None:
                raise Conflict("analysis_deleted", "An erasure deleted the analysis. Request it again.")
            message = f"Analysis of version {tip.number} finished."
            if analysis.request.get(records.SCHEDULED):
                result["applied"] = apply_suggestion(session, model, snapshot, result)
                message += " The suggested penalty is applied." if result["applied"] else " The penalty stays as it is."
            records.finish(stored, snapshot.at, tip.number, result, cost)
            leases.end(job, JobState.SUCCEEDED, message)
        return


def apply_suggestion(session: Session, model: Model, snapshot: ModelSnapshot, result: dict[str, Any]) -> int | None:
    """Make the change that a scheduled tuning suggests, if the policy allows it and the gate would pass.

    Returns the position of the change; None if nothing changes. If the model has changed since, the next tuning
    decides.
    """
    agreed = result["gate"] is not None and result["gate"]["passed"] is True
    if not agreed or not policy_of(model).tune.apply or model.head != snapshot.at or model.held_at is not None:
        return None
    position = change_spec(session, model, ChangeKind.REGULARIZER, result["change"]["regularizer"])
    queue.enqueue_adaptation(session, model, None)
    return position


def compute(
    attempt: JobAttempt, snapshot: ModelSnapshot, tip: Version, kind: AnalysisKind, request: dict[str, Any]
) -> Result:
    """The result of an analysis."""
    model = model_at_head(attempt, snapshot, tip)
    match kind:
        case AnalysisKind.PREVIEW:
            return run_preview(snapshot, model, request)
        case AnalysisKind.LEAVE_ONE_OUT:
            return report_leave_one_out(model, request)
        case AnalysisKind.CROSS_VALIDATION:
            return report_cross_validation(model, request)
        case AnalysisKind.TUNING:
            result, passes = tune(model, request)
            return judge_suggestion(snapshot, model, request, result, passes)
        case AnalysisKind.INFLUENCE:
            return report_influence(model, request, decode_inputs(request))
        case AnalysisKind.LABELLING:
            where = (snapshot.context.database, snapshot.model_id, snapshot.spec, snapshot.at)
            x, ids = requests.pending_pool(*where, snapshot.context.encoders.find(snapshot.spec))
            return report_labelling(model, x, ids, request["top"])


def tune(model: AnalysedModel, request: dict[str, Any]) -> Result:
    """The result of a tuning. A scheduled one splits single examples if there are too few people for its folds."""
    try:
        return report_tuning(model, request)
    except Conflict:
        if not request.get(records.SCHEDULED) or request["by"] == "example":
            raise
        return report_tuning(model, {**request, "by": "example"})


def judge_suggestion(
    snapshot: ModelSnapshot, model: AnalysedModel, request: dict[str, Any], result: dict[str, Any], passes: int
) -> Result:
    """The result of a scheduled tuning, with what the gate would say about its suggestion; null if nothing changes."""
    if not request.get(records.SCHEDULED):
        return result, passes
    result["gate"] = None
    change = result["change"]["regularizer"]
    if change != snapshot.spec["regularizer"]:
        previewed, more = run_preview(snapshot, model, {"change": [(ChangeKind.REGULARIZER.value, change)]})
        result["gate"], passes = previewed["gate"], passes + more
    return result, passes


def decode_inputs(request: dict[str, Any]) -> Tensor | None:
    return None if "inputs" not in request else requests.decode_array(request["inputs"])


def run_preview(snapshot: ModelSnapshot, model: AnalysedModel, request: dict[str, Any]) -> Result:
    with snapshot.context.database.read() as session:
        change = requests.resolve_change(session, model, request)
    draw = None
    if is_network(change.spec.spec["architecture"]) or is_network(snapshot.spec["architecture"]):
        where = (snapshot.context.database, snapshot.model_id, snapshot.spec, snapshot.at, snapshot.at)
        draw = LedgerDraw(*where, left=snapshot.count)
    found = preview(model, change, draw)
    assert found is not None, "a job may make passes"
    return found


def model_at_head(attempt: JobAttempt, snapshot: ModelSnapshot, tip: Version) -> AnalysedModel:
    """The tip, adapted to everything that has changed since."""
    progress = attempt.progress_within(0.02, 0.95)
    in_force = Reading(attempt, snapshot.in_force(), attempt.progress_within(0.02, 0.9), "Reading the examples")
    state, memory = adapted_state(attempt, snapshot, tip, in_force)
    return AnalysedModel(
        database=snapshot.context.database,
        model_id=snapshot.model_id,
        spec=snapshot.spec,
        at=snapshot.at,
        policy=snapshot.policy,
        training=snapshot.training,
        memory_policy=snapshot.memory,
        tip=tip,
        state=state,
        memory=memory,
        holdout=snapshot.holdout,
        subjects=lambda: snapshot.holdout_subjects,
        load=snapshot.load_or_none,
        is_tip=snapshot.is_covered,
        in_force=in_force,
        progress=progress,
    )


def adapted_state(
    attempt: JobAttempt, snapshot: ModelSnapshot, tip: Version, in_force: Reading
) -> tuple[State, Examples]:
    """The model's state at the head, and the rows of its memory. Nothing of it is stored."""
    try:
        if snapshot.is_covered:
            state = snapshot.load(tip)
            return state, snapshot.load_memory(state, tip.position)
        changes = changes_since(attempt, snapshot, tip)
        options = WhatIfOptions(
            snapshot.policy.tolerance.relative_bound, training=snapshot.training, policy=snapshot.memory
        )
        tasks = [*changes.tasks, *spec_changes(snapshot, changes.parent)]
        draw = None
        if is_network(snapshot.spec["architecture"]):
            left = changes.parent.count - sum(len(chunk) for chunk in changes.removed)
            where = (snapshot.context.database, snapshot.model_id, snapshot.spec, tip.position, snapshot.at)
            draw = LedgerDraw(*where, left)
        found = what_if(
            changes.parent,
            changes.memory,
            tasks,
            retained=in_force,
            options=options,
            holdout=snapshot.holdout,
            draw=draw,
        ).result
    except (Unadaptable, ArithmeticError, torch.linalg.LinAlgError):  # type: ignore[attr-defined]
        execution = Execution(device=snapshot.context.device)
        found = train(snapshot.spec, in_force, training=snapshot.training, policy=snapshot.memory, execution=execution)
    return found.state, found.memory
