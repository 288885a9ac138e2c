"""Running the promotion gate for a draft. Called by the jobs `adapt` and `retrain` before they record a version."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from core.kprior.model.spec import loss_of
from core.promotion.gate import (
    HOLDOUT_LOST,
    SCHEMA_CHANGED,
    Reference,
    compare_corrected,
    not_compared,
    run_gate,
)
from core.quality.queries import GateInputs, returned_positions
from core.quality.standard_errors import MIN_ROWS, Estimate
from core.tables.documents import GateComparison
from core.tables.models import Model
from core.tables.versions import Version
from core.versions.drafts import VersionDraft
from worker.versions.gate_rows import compare_rows
from worker.versions.snapshot import ModelSnapshot
from worker.versions.test_then_train import find_expected

ENOUGH_ROWS = 100
"""Holdout rows of an older version whose loss is reported."""


def judge_draft(snapshot: ModelSnapshot, draft: VersionDraft, retrained: bool = False) -> VersionDraft:
    """The draft with the result of the gate.

    A version that learnt no new examples is never rejected, because a removal, a correction or a requested change must
    not be delayed: its failure is only reported. A retrain is rejected for any reason, because the champion has learnt
    the same examples. Corrections and removals of holdout examples are reported if they make the gate blind.
    """
    policy = snapshot.policy.gate
    with snapshot.context.database.read() as session:
        model = session.get_one(Model, snapshot.model_id)
        inputs = GateInputs.read(session, model, draft.position)
    if inputs.champion is None:
        return replace(draft, gate=not_compared("first_version", policy))
    champion = refer_to(snapshot, draft, inputs.champion)
    confirmed = champion if inputs.confirmed is not None else None
    if inputs.confirmed is not None and inputs.confirmed.number != champion.number:
        confirmed = refer_to(snapshot, draft, inputs.confirmed)
    if confirmed is not None:
        confirmed = replace(confirmed, carried=inputs.carried)
    result = run_gate(champion, confirmed, inputs.alarms, policy)
    if not inputs.has_additions and (not retrained or result.get("reason") == SCHEMA_CHANGED):
        result["action"] = "warn"
    if (found := judge_corrections(snapshot, champion, inputs)) is not None:
        result["corrections"] = found
    verdict = None if found is None else found["passed"]
    lost = has_lost_holdout(champion, inputs.champion)
    if confirmed is not None and inputs.confirmed is not None and snapshot.policy.expire is None:
        lost |= has_lost_holdout(confirmed, inputs.confirmed)
    if result["passed"] is not False and (verdict is False or (verdict is None and lost)):
        result["passed"], result["action"] = False, "warn"
        if verdict is None:
            result["reason"] = HOLDOUT_LOST
    return replace(draft, gate=result)


def judge_corrections(snapshot: ModelSnapshot, champion: Reference, inputs: GateInputs) -> GateComparison | None:
    """How far corrections have increased the champion's loss on the holdout; None if that cannot be said."""
    version, rows = inputs.champion, champion.rows
    if version is None or rows is None:
        return None
    corrected = np.zeros(len(rows.positions), bool)
    for first, last in inputs.corrected:
        corrected |= (rows.positions >= first) & (rows.positions <= last)
    newer = rows.positions[rows.positions > version.position]
    if inputs.has_additions and len(newer):
        with snapshot.context.database.read() as session:
            corrected |= np.isin(rows.positions, returned_positions(session, snapshot.model_id, newer, version))
    state = snapshot.load_or_none(version) if corrected.any() else None
    if state is None or not snapshot.has_schema_of(state):
        return None
    corrected &= find_expected(snapshot, version, state, rows.old)
    before = Estimate(version.metrics.get("loss", np.nan), version.metrics.get("loss_se", np.nan))
    return compare_corrected(champion, corrected, inputs.alarms, before, snapshot.policy.gate)


def has_lost_holdout(old: Reference, version: Version) -> bool:
    """Whether too few rows are left to compare with an older version on, although it was evaluated on many."""
    if old.rows is None or (old.rows.positions <= old.position).sum() >= MIN_ROWS:
        return False
    return version.metrics.get("rows", 0) >= ENOUGH_ROWS


def refer_to(snapshot: ModelSnapshot, draft: VersionDraft, version: Version) -> Reference:
    """An older version, with its predictions and the draft's."""
    state = snapshot.load_or_none(version)
    if state is None:
        return Reference(version.number, version.position, None, "version_purged")
    rows = compare_rows(snapshot, draft.state, version, state)
    same_loss = loss_of(state.spec) == loss_of(snapshot.spec)
    return Reference(version.number, version.position, rows, same_loss=same_loss)
