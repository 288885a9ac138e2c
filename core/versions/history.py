"""The life of a version: a draft, which `record` makes a candidate, and `promote` the champion.

The caller holds the lock on the model's row. Workers do both in `worker.versions.recording`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from sqlalchemy.orm import Session

from core.errors import Conflict
from core.models.policy import policy_of
from core.tables.figures import CandidateFigures, CertificateFigures, EvaluationFigures
from core.tables.models import Model
from core.tables.tracking import TrackingEventKind, enqueue_event
from core.tables.versions import Promotion, Version, VersionKind, VersionState
from core.tables.webhooks import WebhookEvent
from core.versions.knowledge import version_knows_erased
from core.versions.queries import find_version, newest_number
from core.versions.store import StoredFile
from core.webhooks.events import emit

if TYPE_CHECKING:  # promoting and listing versions does not need torch
    from core.kprior import Cost, State


def folder_of(model_id: int) -> str:
    """The model's folder in the store. By number: a name may be used again after a deletion."""
    return f"models/{model_id}"


@dataclass(frozen=True)
class VersionDraft:
    """A version before it is recorded."""

    state: State
    kind: VersionKind
    method: str
    """"kprior", "warm", "retrain" or "imported"."""
    position: int
    dataset: str
    cost: Cost
    metrics: dict[str, float]
    evaluation: EvaluationFigures | None = None
    certificate: CertificateFigures | None = None
    parent: int | None = None
    since: int = 0
    """The parent's position; 0 without a parent."""
    why: str = ""
    """Why cheaper methods were rejected."""
    erasing: bool = False
    """Whether it was made for open erasures."""
    candidates: tuple[CandidateFigures, ...] = ()
    """All candidates that were tried, with costs and objections: the next job predicts its costs from them."""


def record(
    session: Session, model: Model, draft: VersionDraft, stored: StoredFile, job_id: str | None = None
) -> Version:
    """Record a draft, whose file is in the store, as the next version; it is a candidate."""
    size = len(draft.state.memory)
    evaluation = draft.evaluation
    if draft.candidates:
        evaluation = {**(evaluation or {}), "candidates": list(draft.candidates)}
    version = Version(
        model_id=model.id,
        number=newest_number(session, model.id) + 1,
        kind=draft.kind,
        parent=draft.parent,
        position=draft.position,
        state=VersionState.CANDIDATE,
        method=draft.method,
        memory={"size": size, "fraction": size / max(1, draft.state.count)},
        dataset=draft.dataset,
        metrics=draft.metrics,
        evaluation=evaluation,
        certificate=draft.certificate,
        cost=cost_json(draft.cost),
        sha256=stored.sha256,
        file=stored.file,
        job_id=job_id,
    )
    session.add(version)
    session.flush()
    return version


def cost_json(cost: Cost) -> dict[str, float]:
    """A cost as JSON."""
    return {"backward_passes": cost.backward_passes, "data_passes": cost.data_passes, "seconds": cost.seconds}


def require_in_use(version: Version) -> None:
    """Raise Conflict if a version is purged, or only kept for a while after somebody whom it knew was erased."""
    if version.state is VersionState.PURGED:
        raise Conflict("version_purged", f"Version {version.number} is purged: its weights are gone.")
    if version.purge_at is not None:
        raise Conflict("version_erased", f"Version {version.number} knew a person who was erased, and is about to go.")


def promotes(model: Model) -> bool:
    """Whether new versions are promoted automatically."""
    return model.held_at is None and policy_of(model).promote == "automatic"


def promote(session: Session, model: Model, version: Version, by: str) -> Promotion:
    """Make a version the champion; promoting an older one is the rollback. The next adaptation starts from it."""
    require_in_use(version)
    if version_knows_erased(session, version):
        raise Conflict("version_erased", f"Version {version.number} knew a person who was erased, and is about to go.")
    previous = model.champion
    if previous is not None and previous != version.number:
        find_version(session, model, previous).state = VersionState.SUPERSEDED
    version.state, model.champion, model.tip = VersionState.CHAMPION, version.number, version.number
    promotion = Promotion(model_id=model.id, version=version.number, previous=previous, by=by)
    session.add(promotion)
    event = WebhookEvent.VERSION_PROMOTED
    emit(session, event, model=model.name, version=version.number, previous=previous, by=by)
    enqueue_event(session, model, TrackingEventKind.ALIASES)
    session.flush()
    return promotion
