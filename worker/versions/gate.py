"""Running the promotion gate for a draft. Called by the jobs `adapt` and `retrain` before they record a version."""

from __future__ import annotations

from dataclasses import replace

from core.kprior import State
from core.kprior.model.spec import loss_of
from core.quality.gate import Holdout, Reference, not_compared, run_gate
from core.quality.gate_rule import MIN_ROWS
from core.quality.queries import GateInputs, RowDetails
from core.quality.scored_rows import MetricOptions
from core.quality.scoring import score
from core.quality.segments import split_into_segments
from core.tables.models import Model
from core.tables.versions import Version
from core.versions.history import VersionDraft
from worker.versions.snapshot import ModelSnapshot
from worker.versions.test_then_train import cluster


def judge_draft(snapshot: ModelSnapshot, draft: VersionDraft, retrained: bool = False) -> VersionDraft:
    """The draft with the result of the gate.

    A version that learnt no new examples is never rejected, because a removal, a correction or a requested change must
    not be delayed: its failure is only reported. A retrain is rejected for any reason, because the champion has learnt
    the same examples.
    """
    policy = snapshot.policy.gate
    with snapshot.context.database.read() as session:
        model = session.get_one(Model, snapshot.model_id)
        inputs = GateInputs.read(session, model, draft)
    if inputs.champion is None:
        return replace(draft, gate=not_compared("first_version", policy))
    if not (inputs.has_additions or retrained):
        policy = policy.model_copy(update={"action": "warn"})
    champion = load_reference(snapshot, inputs.champion)
    confirmed = load_reference(snapshot, inputs.confirmed) if inputs.confirmed else None
    states = [draft.state, *[old for old, _ in (champion, confirmed or (None, "")) if old is not None]]
    positions, (candidate, *others) = score(states, snapshot.holdout, MetricOptions.of(snapshot.policy))
    scored = iter(others)

    def reference(version: Version, loaded: tuple[State | None, str]) -> Reference:
        state, reason = loaded
        return Reference(version.number, version.position, next(scored) if state is not None else None, reason)

    first = reference(inputs.champion, champion)
    second = reference(inputs.confirmed, confirmed) if inputs.confirmed and confirmed else None
    segments = split_into_segments(snapshot.spec, snapshot.policy.segments, snapshot.holdout, MIN_ROWS)
    with snapshot.context.database.read() as session:
        subjects = RowDetails.read(session, snapshot.model_id, positions).subject
    clusters = cluster(positions, subjects) if subjects else None
    holdout = Holdout(positions, inputs.alarms, segments, clusters)
    result = run_gate(candidate, holdout, first, second, policy)
    return replace(draft, gate=result)


def load_reference(snapshot: ModelSnapshot, version: Version) -> tuple[State | None, str]:
    """A version's state, or None and the reason why it cannot be compared."""
    state = snapshot.load_or_none(version)
    if state is None:
        return None, "version_purged"
    if not snapshot.has_schema_of(state):
        return None, "schema_changed"
    if snapshot.policy.gate.metric == "loss" and loss_of(state.spec) != loss_of(snapshot.spec):
        return None, "loss_changed"
    return state, ""
