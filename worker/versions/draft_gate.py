"""Running the promotion gate for a draft. Called by the jobs `adapt` and `retrain` before they record a version."""

from __future__ import annotations

from dataclasses import replace

from core.kprior.model.spec import loss_of
from core.promotion.gate import SCHEMA_CHANGED, Reference, not_compared, run_gate
from core.quality.queries import GateInputs
from core.tables.models import Model
from core.tables.versions import Version
from core.versions.drafts import VersionDraft
from worker.versions.gate_rows import compare_rows
from worker.versions.snapshot import ModelSnapshot


def judge_draft(snapshot: ModelSnapshot, draft: VersionDraft, retrained: bool = False) -> VersionDraft:
    """The draft with the result of the gate.

    A version that learnt no new examples is never rejected, because a removal, a correction or a requested change must
    not be delayed: its failure is only reported. A retrain is rejected for any reason, because the champion has learnt
    the same examples.
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
    return replace(draft, gate=result)


def refer_to(snapshot: ModelSnapshot, draft: VersionDraft, version: Version) -> Reference:
    """An older version, with its predictions and the draft's."""
    state = snapshot.load_or_none(version)
    if state is None:
        return Reference(version.number, version.position, None, "version_purged")
    rows = compare_rows(snapshot, draft.state, version, state)
    same_loss = loss_of(state.spec) == loss_of(snapshot.spec)
    return Reference(version.number, version.position, rows, same_loss=same_loss)
