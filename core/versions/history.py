"""From a draft to a recorded version. Workers call it in `worker.versions.recording`, under the model's lock."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from sqlalchemy.orm import Session

from core.errors import Conflict
from core.kprior.certificate.certificate import Certificate
from core.tables.documents import CostDocument, EvaluationDocument, GateDocument, TrialDocument
from core.tables.models import Model
from core.tables.versions import Version, VersionKind, VersionState
from core.versions.queries import newest_number
from core.versions.store import StoredFile

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
    dataset_digest: str
    cost: Cost
    metrics: dict[str, float]
    evaluation: EvaluationDocument | None = None
    certificate: Certificate | None = None
    parent: int | None = None
    since: int = 0
    """The parent's position; 0 without a parent."""
    why: str = ""
    """Why cheaper methods were rejected."""
    erasing: bool = False
    """Whether it was made for open erasures."""
    gate: GateDocument | None = None
    """The result of the promotion gate, as stored (`core.quality.gate`)."""
    trials: tuple[TrialDocument, ...] = ()
    """All methods that were tried, with costs and objections, from which the next job predicts its costs."""

    @property
    def rejected(self) -> bool:
        """Whether the version failed the gate and must not become the tip."""
        return self.gate is not None and self.gate["passed"] is False and self.gate["action"] == "reject"


def record(
    session: Session, model: Model, draft: VersionDraft, stored: StoredFile, job_id: str | None = None
) -> Version:
    """Record a draft, whose file is in the store, as the next version; it is a candidate."""
    size = len(draft.state.memory)
    evaluation = draft.evaluation
    if draft.trials:
        evaluation = {**(evaluation or {}), "trials": list(draft.trials)}
    version = Version(
        model_id=model.id,
        number=newest_number(session, model.id) + 1,
        kind=draft.kind,
        parent=draft.parent,
        position=draft.position,
        state=VersionState.CANDIDATE,
        method=draft.method,
        memory={"size": size, "fraction": size / max(1, draft.state.count)},
        dataset_digest=draft.dataset_digest,
        metrics=draft.metrics,
        evaluation=evaluation,
        certificate=draft.certificate,
        gate=draft.gate,
        cost=cost_json(draft.cost),
        sha256=stored.sha256,
        file=stored.file,
        job_id=job_id,
    )
    session.add(version)
    session.flush()
    return version


def cost_json(cost: Cost) -> CostDocument:
    """A cost as JSON."""
    return {"backward_passes": cost.backward_passes, "data_passes": cost.data_passes, "seconds": cost.seconds}


def require_in_use(version: Version) -> None:
    """Raise Conflict if a version is purged, or kept only until the retention period after an erasure ends."""
    if version.state is VersionState.PURGED:
        raise Conflict("version_purged", f"Version {version.number} was purged. Its weights no longer exist.")
    if version.purge_at is not None:
        raise erased_conflict(version)


def erased_conflict(version: Version) -> Conflict:
    detail = f"Version {version.number} was trained on data of an erased person and is scheduled for deletion."
    return Conflict("version_erased", detail)
