"""The job `retrain`: train from scratch at the head, and compare with the adapted version at the same position."""

from __future__ import annotations

from functools import partial

from sqlalchemy.orm import Session

from core.errors import Conflict
from core.jobs import holds, queue
from core.jobs.leases import JobLost
from core.jobs.queries import last_job
from core.kprior import State
from core.models.policy import Policy, policy_of
from core.tables.figures import ComparisonFigures
from core.tables.jobs import Job, JobKind, JobState
from core.tables.models import Model
from core.tables.versions import Comparison, Version, VersionKind
from core.tables.webhooks import WebhookEvent
from core.tracking.descriptions import describe_span
from core.versions import history
from core.versions.comparison import compare, weight_distance
from core.versions.history import VersionDraft
from core.versions.knowledge import position_knows_erased
from core.versions.privacy_rounding import SIDES
from core.versions.queries import tip_of
from core.webhooks.events import emit
from worker.attempt import JobAttempt, Outdated
from worker.jobs.nested_job import run_nested
from worker.versions.builder import train_draft
from worker.versions.recording import record_version
from worker.versions.snapshot import ModelSnapshot
from worker.versions.units import find_units

KEPT_FOR_COMPARISON = "the retrained version is kept to compare with"
"""The outcome of a retrain that the adapted version is close enough to."""


def retrain(attempt: JobAttempt) -> None:
    """Train from scratch, compare, and have the retrained version take over if the adapted one is too far off."""
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
        # the adapted version's position, if it got there: changes after that are adapted on top of either
        at = tip.position if tip is not None and is_caught_up(session, tip, attempt) else model.head
        if position_knows_erased(session, model.id, at):
            at = model.head
        snapshot = ModelSnapshot.of(attempt.context, session, model, at)
    if snapshot.count == 0:
        raise Conflict("nothing_to_train_on", "The model has no training examples in force.")
    current = snapshot.load_or_none(snapshot.tip)
    draft = train_draft(attempt, snapshot, attempt.progress_within(0.1, 0.9), encoder_of=find_units(snapshot))
    figures = None
    there = snapshot.tip is not None and snapshot.tip.position == at and current is not None
    adapted = snapshot.tip if there else None
    if adapted is not None and adapted.kind is VersionKind.ADAPTED and current is not None:
        attempt.progress(0.92, "comparing with the adapted version")
        figures = compare_with(snapshot, adapted, current, draft)
    record_version(attempt, draft, partial(settle, snapshot, draft, adapted, figures))


def bring_to_head(attempt: JobAttempt) -> None:
    """Run an adaptation to the head first, or wait for the one that runs already."""
    with attempt.write() as (session, job, model):
        tip = tip_of(session, model)
        if tip is None or tip.position == model.head or has_failed(session, model):
            return
        adaptation = queue.enqueue(session, model, JobKind.ADAPT, attempt.request_id).id
    run_nested(attempt, adaptation, "adapting to the head first")


def has_failed(session: Session, model: Model) -> bool:
    """Whether the last adaptation failed at the present head: another one would fail, too."""
    last = last_job(session, model.id, JobKind.ADAPT)
    return last is not None and last.state is JobState.FAILED and last.to_position == model.head


def is_caught_up(session: Session, tip: Version, attempt: JobAttempt) -> bool:
    """Whether the adapted version covers all changes up to the time when the retrain was requested."""
    return tip.position >= session.get_one(Job, attempt.job_id).to_position


def compare_with(snapshot: ModelSnapshot, adapted: Version, current: State, draft: VersionDraft) -> ComparisonFigures:
    """The figures of the adapted and the retrained version, side by side, on the same rows."""
    pair = compare(current, draft.state, snapshot.holdout)
    ours, theirs, worse = pair.one.metrics, pair.other.metrics, pair.worse
    if not ours:  # without a holdout, they are compared on training examples
        pair = compare(current, draft.state, snapshot.training_sample)
    figures: ComparisonFigures = {
        "rows": pair.one.count,
        "heaviest": pair.one.heaviest,
        "disagreement": pair.disagreement,
        "disagreement_se": pair.errors.get("disagreement"),
        "weight_distance": weight_distance(current, draft.state),
        "cost": {"adapted": adapted.cost, "retrained": history.cost_json(draft.cost)},
        "speedup": draft.cost.seconds / max(adapted.cost["seconds"], 1e-9),
        "worse": None if worse is None else describe_worse(worse, ours, theirs, pair.errors),
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
        return f"{name} beyond all numbers against {ours[name]:.4g}"
    apart = f"{abs(ours[name] - theirs[name]):.2g} +- {errors.get(name, 0):.1g}"
    return f"{name} {theirs[name]:.4g} against {ours[name]:.4g}, a difference of {apart}"


def is_within_tolerance(policy: Policy, draft: VersionDraft, adapted: Version, figures: ComparisonFigures) -> bool:
    """Whether the adapted version is as close to the retrained one as the policy requires."""
    if draft.dataset != adapted.dataset:
        return False  # its data is not what the ledger says
    apart, distance = figures["disagreement"], figures["weight_distance"]
    near = distance is None or distance <= policy.tolerance.relative_bound * float(draft.state.w.norm())
    return near and (apart is None or apart <= policy.tolerance.disagreement)


def settle(
    snapshot: ModelSnapshot,
    draft: VersionDraft,
    adapted: Version | None,
    figures: ComparisonFigures | None,
    session: Session,
    model: Model,
    version: Version,
) -> str:
    """Record the comparison, and let the retrained version take over if the adapted one is outside tolerance.

    Returns the job's message.
    """
    message = f"version {version.number}, trained for {describe_span(1, draft.position)}"
    if adapted is None:
        message += "; " + take_over(session, model, version, snapshot.tip)
    elif figures is None:
        message += f"; version {adapted.number}, which was trained for the same examples, stays"
    else:
        good = is_within_tolerance(policy_of(model), draft, adapted, figures)
        message += f"; the adapted version {adapted.number} is {'within' if good else 'outside'} tolerance of it; "
        outcome = KEPT_FOR_COMPARISON if good else objection(draft, adapted, figures)
        outcome = outcome or take_over(session, model, version, snapshot.tip)
        message += outcome
        session.add(
            Comparison(
                model_id=model.id,
                position=draft.position,
                adapted=adapted.number,
                retrained=version.number,
                figures={**figures, "took_over": model.tip == version.number, "outcome": outcome},
                within_tolerance=good,
            )
        )
        if not good:
            pair = {"adapted": adapted.number, "retrained": version.number, "position": draft.position}
            emit(session, WebhookEvent.TOLERANCE_MISSED, model=model.name, **pair)
    return message


def objection(draft: VersionDraft, adapted: Version, figures: ComparisonFigures) -> str:
    """Why the retrained version does not take over, though the adapted one is outside tolerance; "" if it does."""
    if figures["worse"] is None or draft.dataset != adapted.dataset:
        return ""  # a version of the wrong data must go, however good it is
    # without figures: the message outlives the comparison, which is deleted when somebody in its data is erased
    return "the retrained version is worse on the holdout and stays a candidate"


def take_over(session: Session, model: Model, version: Version, before: Version | None) -> str:
    """Make the retrained version the tip, and promote it unless that would undo later versions.

    Returns what happened, for the job's message.
    """
    tip = tip_of(session, model)
    if tip is None and before is not None:  # withdrawn meanwhile: its examples were removed
        if model.train_count:
            queue.enqueue(session, model, JobKind.ADAPT)
        return "the retrained version stays a candidate: its examples were removed meanwhile"
    if tip is not None and (before is None or tip.number != before.number):
        if tip.position < version.position:
            return "the retrained version stays a candidate: somebody went back to an older one meanwhile"
        if tip.position > version.position:
            model.tip = version.number
            queue.enqueue(session, model, JobKind.ADAPT)
            return "what came meanwhile is adapted on top of the retrained version"
    model.tip = version.number
    if history.promotes(model):
        history.promote(session, model, version, by="policy")
        return "the retrained version was promoted"
    why = holds.NOT_PROMOTED if model.held_at else "not promoted, by the policy"
    return f"adaptations start from the retrained version; {why}"
