"""The job `adapt`: creates a version at the head from the tip and the changes after it."""

from functools import partial

from sqlalchemy.orm import Session

from core.errors import Conflict
from core.jobs import leases
from core.jobs.leases import JobLost
from core.lifecycle.withdrawal import withdraw
from core.promotion.decision import Requester, request_promotion, set_tip
from core.tables.jobs import JobState
from core.tables.models import Model
from core.tables.versions import Version, VersionKind
from core.tracking.formats import describe_span
from core.versions import imported_weights
from core.versions.drafts import VersionDraft
from core.versions.queries import find_version, newest_number
from worker.job_attempt import JobAttempt, Outdated
from worker.versions.draft_gate import judge_draft
from worker.versions.encoding import encode_snapshot
from worker.versions.method_choice import next_version
from worker.versions.recording import record_version
from worker.versions.rejection import record_rejection, warn_about
from worker.versions.snapshot import ModelSnapshot
from worker.versions.test_then_train import NewExamplesScored, score_new_examples


def adapt(attempt: JobAttempt) -> None:
    """Create a version at the head, and promote it if the policy says so."""
    while True:
        with attempt.context.database.read() as session:
            model = session.get(Model, attempt.model_id)
            if model is None:
                raise JobLost
            snapshot = ModelSnapshot.of(attempt.context, session, model, model.head)
            ever_trained = newest_number(session, model.id) > 0
        snapshot = encode_snapshot(attempt, snapshot)
        if snapshot.tip is not None and snapshot.is_covered and not snapshot.unproven:
            if conclude_at_head(attempt, snapshot.tip.number):
                return
            continue
        if snapshot.count == 0:
            if not ever_trained:
                raise Conflict("nothing_to_train_on", "The model has no training examples. Add examples first.")
            if conclude_withdrawn(attempt):
                return
            continue
        try:
            scored = score_new_examples(snapshot)
            draft = judge_draft(snapshot, next_version(attempt, snapshot))
            if not draft.rejected:
                record_version(attempt, snapshot, draft, partial(settle, snapshot, draft, scored))
                return
            if record_rejection(attempt, snapshot, draft, scored):
                return
        except Outdated:
            continue


def conclude_withdrawn(attempt: JobAttempt) -> bool:
    """Withdraw the model because no training examples are left; returns False if there are some again."""
    with attempt.write() as (session, job, model):
        if model.train_count:
            return False
        withdraw(session, model)
        message = "No training examples are left: the model is withdrawn until there are new ones."
        leases.end(job, JobState.SUCCEEDED, message)
    return True


def conclude_at_head(attempt: JobAttempt, number: int) -> bool:
    """End the job without a new version, after promoting the tip if it should be; returns False if the tip changed."""
    with attempt.write() as (session, job, model):
        if model.tip != number:
            return False
        decision = request_promotion(session, model, find_version(session, model, number), Requester.POLICY)
        job.version = number
        message = f"Version {number} already covers all changes"
        leases.end(job, JobState.SUCCEEDED, f"{message}; promoted." if decision.promoted else f"{message}.")
    return True


def settle(
    snapshot: ModelSnapshot,
    draft: VersionDraft,
    scored: NewExamplesScored,
    session: Session,
    model: Model,
    version: Version,
) -> str:
    """Make the new version the tip, and promote it if the policy says so; returns the job's message."""
    if model.tip != (snapshot.tip.number if snapshot.tip else None):
        raise Outdated
    set_tip(model, version)
    scored.record(session, model, version.job_id)
    imported_weights.drop(session, model.id)
    accepted = snapshot.tip is not None and snapshot.tip.position < model.accepted_position <= draft.position
    if accepted and model.held_at is None:
        decision = request_promotion(session, model, version, Requester.PERSON, model.accepted_by)
    else:
        decision = request_promotion(session, model, version, Requester.POLICY)
    if accepted or (decision.promoted and is_wanted_deterioration(snapshot, draft)):
        model.confirmed = version.number
    warn_about(session, model, version)
    warning = " It failed the promotion gate." if version.gate is not None and version.gate["passed"] is False else ""
    return f"{describe_draft(version, draft)}; {decision.reason}.{warning}"


def is_wanted_deterioration(snapshot: ModelSnapshot, draft: VersionDraft) -> bool:
    """Whether a removal or a requested change made the model worse. Later versions are then compared with this one:
    otherwise they would be rejected for it."""
    gate = draft.gate
    warned = gate is not None and gate["passed"] is False and gate["action"] == "warn"
    return warned and snapshot.policy.gate.action == "reject"


def describe_draft(version: Version, draft: VersionDraft) -> str:
    """How a version was made, without the full stop: "Version 3 adapted to changes 11-20"."""
    if draft.since == draft.position:
        made = f"certified at position {draft.position}"
    elif version.kind is VersionKind.ADAPTED:
        made = f"adapted to {describe_span(draft.since + 1, draft.position)}"
    else:
        made = f"trained on {describe_span(draft.since + 1, draft.position)}"
    by = {"imported": " from imported weights", "warm": " by a warm start on all examples"}.get(draft.method, "")
    if draft.method == "imported" and draft.why:  # the imported trees have no weights for the head
        return f"Version {version.number} {made} with imported splits"
    return f"Version {version.number} {made}{by}" + (f" because {draft.why.rstrip('.')}" if draft.why else "")
