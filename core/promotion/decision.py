"""Promotion: the one place that answers whether a version may become the champion.

Jobs and endpoints call `request_promotion`. It decides by who asks (the policy, an erasure or a person), carries the
decision out, and returns it with a reason for the job's message. The caller holds the lock on the model's row.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from sqlalchemy.orm import Session

from core.errors import Conflict
from core.models.holds import hold, note_erasure
from core.models.policy import policy_of
from core.tables.erasures import Part
from core.tables.models import Model
from core.tables.tracking import TrackingEventKind, enqueue_event
from core.tables.versions import Promotion, Version, VersionState
from core.tables.webhooks import WebhookEvent
from core.versions.erased_examples import may_depend_on_erased, precedes_examples
from core.versions.queries import champion_of, erased_conflict, find_version, require_in_use
from core.webhooks.events import emit


class Requester(StrEnum):
    """Who asks for a promotion."""

    POLICY = "policy"
    """A job, for a version that it made."""
    ERASURE = "erasure"
    """An erasure, for a version that was trained without the people being erased."""
    PERSON = "person"
    """The holder of an API key; promoting an older version is a rollback."""
    ACCEPTANCE = "acceptance"
    """The holder of an API key, who accepts a version that the gate rejected."""


class Action(StrEnum):
    """What becomes of the version."""

    PROMOTE = "promote"
    PROMOTE_AND_HOLD = "promote_and_hold"
    """Promote, and hold the model, because the next adaptation would undo the rollback."""
    KEEP = "keep"
    """Leave the champion as it is."""


@dataclass(frozen=True)
class PromotionDecision:
    """What becomes of a version, and the reason as a clause for the job's message."""

    action: Action
    reason: str

    @property
    def promoted(self) -> bool:
        return self.action is not Action.KEEP


PROMOTED = PromotionDecision(Action.PROMOTE, "promoted")
ALREADY_CHAMPION = PromotionDecision(Action.KEEP, "already the champion")
MODEL_HELD = PromotionDecision(Action.KEEP, "not promoted: the model is held")
POLICY_MANUAL = PromotionDecision(Action.KEEP, "not promoted: the policy requires a manual promotion")
CHAMPION_UNAFFECTED = PromotionDecision(Action.KEEP, "not promoted: the champion was never trained on the erased data")


def decide_promotion(
    session: Session, model: Model, version: Version, requester: Requester, people: Sequence[Part] = ()
) -> PromotionDecision:
    """Decide whether a version becomes the champion; `people` are the parts of the erasures that ask for it."""
    if requester is Requester.PERSON:
        rebuilt = version.removals_position > version.position
        rollback = model.champion is not None and (version.number < model.champion or rebuilt)
        return PromotionDecision(Action.PROMOTE_AND_HOLD, "rolled back") if rollback else PROMOTED
    if requester is Requester.ACCEPTANCE:
        return PROMOTED
    if model.champion == version.number:
        return ALREADY_CHAMPION
    if requester is Requester.ERASURE:
        champion = champion_of(session, model)
        affected = champion is not None and not all(precedes_examples(part, champion.position) for part in people)
        return PROMOTED if affected else CHAMPION_UNAFFECTED
    if model.held_at is not None:
        return MODEL_HELD
    return PROMOTED if policy_of(model).promote == "automatic" else POLICY_MANUAL


def request_promotion(
    session: Session,
    model: Model,
    version: Version,
    requester: Requester,
    key_id: str | None = None,
    people: Sequence[Part] = (),
) -> PromotionDecision:
    """Decide whether a version becomes the champion, and carry the decision out. `key_id` identifies a person."""
    decision = decide_promotion(session, model, version, requester, people)
    by = key_id or requester.value
    if decision.promoted:
        promote(session, model, version, by)
        if requester in (Requester.PERSON, Requester.ACCEPTANCE) or is_incomparable(version):
            model.confirmed = version.number
    if decision.action is Action.PROMOTE_AND_HOLD:
        hold(session, model, f"version {version.number} was promoted by hand", by)
    elif decision.promoted and requester is Requester.ERASURE:
        note_erasure(model, version.number)
    return decision


def set_tip(model: Model, version: Version) -> None:
    """Make a version the one that the next adaptation starts from."""
    model.tip, model.covered_position = version.number, 0


def is_incomparable(version: Version) -> bool:
    """Whether a requested change of the target left nothing to compare the version with."""
    return version.gate is not None and version.gate.get("reason") == "schema_changed"


def promote(session: Session, model: Model, version: Version, by: str) -> Promotion:
    """Make a version the champion, without asking whether it should be. The next adaptation starts from it.

    Raises Conflict if the version is purged, or was trained on data of a person who is being erased.
    """
    require_in_use(version)
    if version.state is VersionState.REJECTED:
        detail = f"Version {version.number} was rejected by the promotion gate. Accept or discard it instead."
        raise Conflict("version_rejected", detail)
    if may_depend_on_erased(session, version):
        raise erased_conflict(version)
    previous = model.champion
    if previous is not None and previous != version.number:
        find_version(session, model, previous).state = VersionState.SUPERSEDED
    version.state, model.champion = VersionState.CHAMPION, version.number
    set_tip(model, version)
    if model.confirmed is None:
        model.confirmed = version.number
    promotion = Promotion(model_id=model.id, version=version.number, previous=previous, by=by)
    session.add(promotion)
    event = WebhookEvent.VERSION_PROMOTED
    emit(session, event, model=model.name, version=version.number, previous=previous, by=by)
    enqueue_event(session, model, TrackingEventKind.ALIASES)
    session.flush()
    return promotion
