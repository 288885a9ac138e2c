"""The job `retrain`: trains from scratch at the head and compares with the adapted version at the same position."""

from functools import partial

from sqlalchemy.orm import Session

from core.errors import Conflict
from core.jobs import queue
from core.jobs.leases import JobLost
from core.jobs.queries import last_job
from core.kprior import State
from core.models.policy import Policy, policy_of
from core.promotion.decision import Requester, request_promotion, set_tip
from core.quality.scored_rows import MetricOptions
from core.quality.version_comparison import MIN_STANDARD_ERRORS, compare, weight_distance
from core.tables.documents import ComparisonDocument
from core.tables.jobs import Job, JobKind, JobState
from core.tables.models import Model
from core.tables.versions import Comparison, Version, VersionKind, VersionState
from core.tables.webhooks import WebhookEvent
from core.tracking.formats import describe_span
from core.versions import drafts
from core.versions.drafts import VersionDraft
from core.versions.erased_examples import position_has_erased_examples
from core.versions.privacy_rounding import SIDES
from core.versions.queries import tip_of
from core.webhooks.events import emit
from worker.job_attempt import JobAttempt, Outdated
from worker.jobs.nested_job import run_nested
from worker.versions.builder import train_draft
from worker.versions.column_units import find_units
from worker.versions.draft_gate import judge_draft
from worker.versions.encoding import encode_snapshot
from worker.versions.recording import record_version
from worker.versions.rejection import report_failure
from worker.versions.snapshot import ModelSnapshot
from worker.versions.test_then_train import NewExamplesScored, score_new_examples

KEPT_FOR_COMPARISON = "the retrained version is kept for comparison"
"""The outcome if the adapted version is close enough to the retrained one."""


def retrain(attempt: JobAttempt) -> None:
    """Train from scratch and compare; the retrained version takes over if the adapted one is outside tolerance."""
    while True:
        try:
            retrain_at_head(attempt)
            return
        except Outdated:
            continue


def retrain_at_head(attempt: JobAttempt) -> None:
    bring_to_head(attempt)
    with attempt.context.database.read() as session:
        model = session.get(Model, attempt.model_id)
        if model is None:
            raise JobLost
        tip = tip_of(session, model)
        # the position of the adapted version if it caught up: later changes are adapted on top of either version
        at = tip.position if tip is not None and is_caught_up(session, model, tip, attempt) else model.head
        if position_has_erased_examples(session, model.id, at):
            at = model.head
        snapshot = ModelSnapshot.of(attempt.context, session, model, at)
    snapshot = encode_snapshot(attempt, snapshot)
    if snapshot.count == 0:
        raise Conflict("nothing_to_train_on", "The model has no training examples. Add examples first.")
    scored = score_new_examples(snapshot)
    current = snapshot.load_or_none(snapshot.tip)
    draft = train_draft(attempt, snapshot, attempt.progress_within(0.1, 0.9), encoder_of=find_units(snapshot))
    draft = judge_draft(snapshot, draft, retrained=True)
    figures = None
    there = snapshot.tip is not None and snapshot.tip.position == at and current is not None
    adapted = snapshot.tip if there else None
    if adapted is not None and adapted.kind is VersionKind.ADAPTED and current is not None:
        attempt.progress(0.92, "Comparing with the adapted version")
        figures = compare_with(snapshot, adapted, current, draft)
    record_version(attempt, snapshot, draft, partial(settle, snapshot, draft, scored, adapted, figures))


def bring_to_head(attempt: JobAttempt) -> None:
    """Run an adaptation to the head first, or wait for the one that is running."""
    with attempt.write() as (session, job, model):
        tip = tip_of(session, model)
        if tip is None or max(tip.position, model.covered_position) == model.head or has_failed(session, model):
            return
        adaptation = queue.enqueue(session, model, JobKind.ADAPT, attempt.request_id).id
    run_nested(attempt, adaptation, "Adapting to the latest changes first")


def has_failed(session: Session, model: Model) -> bool:
    """Whether the last adaptation failed at the current head, so that another would fail too."""
    last = last_job(session, model.id, JobKind.ADAPT)
    return last is not None and last.state is JobState.FAILED and last.to_position == model.head


def is_caught_up(session: Session, model: Model, tip: Version, attempt: JobAttempt) -> bool:
    """Whether the adapted version covers all changes up to the request for the retrain."""
    return max(tip.position, model.covered_position) >= session.get_one(Job, attempt.job_id).to_position


def compare_with(snapshot: ModelSnapshot, adapted: Version, current: State, draft: VersionDraft) -> ComparisonDocument:
    """The metrics of the adapted and the retrained version, computed on the same rows."""
    options = MetricOptions.of(snapshot.policy)
    pair = compare(current, draft.state, snapshot.holdout, options)
    ours, theirs, worse = pair.one.metrics, pair.other.metrics, pair.worse
    if not ours:  # without a holdout, compare on training examples
        pair = compare(current, draft.state, snapshot.training_sample, options)
    figures: ComparisonDocument = {
        "rows": pair.one.count,
        "heaviest": pair.one.heaviest,
        "disagreement": pair.disagreement,
        "disagreement_se": pair.errors.get("disagreement"),
        "weight_distance": weight_distance(current, draft.state),
        "cost": {"adapted": adapted.cost, "retrained": drafts.cost_json(draft.cost)},
        "speedup": draft.cost.seconds / max(adapted.cost["seconds"], 1e-9),
        "retrain_is_worse": None if worse is None else describe_worse(worse, ours, theirs, pair.errors),
    }
    for name in SIDES:
        if name in ours and name in theirs:
            figures[name] = {"adapted": ours[name], "retrained": theirs[name]}
            if name in pair.errors:
                figures[name]["difference_se"] = pair.errors[name]
    return figures


def describe_worse(name: str, ours: dict[str, float], theirs: dict[str, float], errors: dict[str, float]) -> str:
    """Describe a metric in which the retrained version is worse."""
    if name not in theirs:
        return f"{name} infinite against {ours[name]:.4g}"
    apart = f"{abs(ours[name] - theirs[name]):.2g} +- {errors.get(name, 0):.1g}"
    return f"{name} {theirs[name]:.4g} against {ours[name]:.4g}, a difference of {apart}"


def is_within_tolerance(policy: Policy, draft: VersionDraft, adapted: Version, figures: ComparisonDocument) -> bool:
    """Whether the adapted version is as close to the retrained one as the policy requires."""
    if draft.dataset_digest != adapted.dataset_digest:
        return False  # it was trained on other data than the ledger contains
    if draft.state.spec["architecture"]["kind"] == "trees":
        return is_as_good(policy, figures)
    apart, distance = figures["disagreement"], figures["weight_distance"]
    near = distance is None or distance <= policy.tolerance.relative_bound * float(draft.state.w.norm())
    return near and (apart is None or apart <= policy.tolerance.disagreement)


def is_as_good(policy: Policy, figures: ComparisonDocument) -> bool:
    """Whether the holdout loss of adapted trees is not worse than that of newly boosted ones, beyond chance and the
    tolerance: two boosters differ in many predictions, however good they are."""
    loss = figures.get("loss")
    if loss is None:
        return False  # without a holdout, nothing speaks for splits that were learnt from fewer examples
    worse = loss["adapted"] - loss["retrained"]
    by_chance = MIN_STANDARD_ERRORS * loss.get("difference_se", 0.0)
    return worse <= max(by_chance, policy.tolerance.disagreement * abs(loss["retrained"]))


def settle(
    snapshot: ModelSnapshot,
    draft: VersionDraft,
    scored: NewExamplesScored,
    adapted: Version | None,
    figures: ComparisonDocument | None,
    session: Session,
    model: Model,
    version: Version,
) -> str:
    """Record the comparison; the retrained version takes over if the adapted one is outside tolerance.

    Returns the job's message.
    """
    scored.record(session, model, version.job_id)
    message = f"Version {version.number} trained from scratch on {describe_span(1, draft.position)}"
    if adapted is None:
        message += "; " + (reject(session, model, version, draft) or take_over(session, model, version, snapshot.tip))
    elif figures is None:
        message += f"; version {adapted.number}, which was trained on the same examples, stays in place"
    else:
        good = is_within_tolerance(policy_of(model), draft, adapted, figures)
        outcome = KEPT_FOR_COMPARISON if good else objection(draft, adapted, figures)
        outcome = outcome or reject(session, model, version, draft) or take_over(session, model, version, snapshot.tip)
        if good and version.gate is not None and version.gate["passed"] is not False:
            model.confirmed = adapted.number
        message += f"; the adapted version {adapted.number} is {'within' if good else 'outside'} tolerance; {outcome}"
        session.add(
            Comparison(
                model_id=model.id,
                position=draft.position,
                adapted=adapted.number,
                retrained=version.number,
                result={**figures, "took_over": model.tip == version.number, "outcome": outcome},
                within_tolerance=good,
            )
        )
        if not good:
            pair = {"adapted": adapted.number, "retrained": version.number, "position": draft.position}
            emit(session, WebhookEvent.TOLERANCE_MISSED, model=model.name, **pair)
    return f"{message}."


def objection(draft: VersionDraft, adapted: Version, figures: ComparisonDocument) -> str:
    """Why the retrained version does not take over although the adapted one is outside tolerance; "" if it does."""
    if figures["retrain_is_worse"] is None or draft.dataset_digest != adapted.dataset_digest:
        return ""  # a version trained on the wrong data must be replaced, however good it is
    # without metrics: the message outlives the comparison, which is deleted when a person in its data is erased
    return "the retrained version is worse on the holdout and stays a candidate"


def reject(session: Session, model: Model, version: Version, draft: VersionDraft) -> str:
    """Mark a retrained version as rejected if it failed the gate; returns what happened, or "" if it passed."""
    if not draft.rejected:
        return ""
    version.state = VersionState.REJECTED
    report_failure(session, model, version, 0)
    return "the retrained version was rejected by the promotion gate"


def take_over(session: Session, model: Model, version: Version, before: Version | None) -> str:
    """Make the retrained version the tip, and promote it unless that would undo later versions.

    Returns what was done, for the job's message.
    """
    tip = tip_of(session, model)
    if tip is None and before is not None:  # the model was withdrawn meanwhile
        if model.train_count:
            queue.enqueue(session, model, JobKind.ADAPT)
        return "the retrained version stays a candidate: the model was withdrawn meanwhile"
    if tip is not None and (before is None or tip.number != before.number):
        if tip.position < version.position:
            return "the retrained version stays a candidate: an older version was promoted meanwhile"
        if tip.position > version.position:
            set_tip(model, version)
            queue.enqueue(session, model, JobKind.ADAPT)
            return "later changes will be adapted on top of the retrained version"
    set_tip(model, version)
    decision = request_promotion(session, model, version, Requester.POLICY)
    if decision.promoted:
        model.confirmed = version.number
        return "the retrained version was promoted"
    return f"adaptations start from the retrained version; {decision.reason}"
