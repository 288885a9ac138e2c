"""From a draft to a recorded version. Workers call it in `worker.versions.recording`, under the model's lock."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from sqlalchemy.orm import Session

from core.kprior.certificate.certificate import Certificate
from core.tables.documents import CostDocument, EvaluationDocument, GateDocument, TrialDocument
from core.tables.models import Model
from core.tables.versions import Version, VersionKind, VersionState
from core.versions.queries import newest_number
from core.versions.store import StoredFile

if TYPE_CHECKING:  # promoting and listing versions does not need torch
    from core.kprior import Cost, State


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
    removals_position: int = 0
    """Position up to which removals are reflected, if it is later than `position`."""
    why: str = ""
    """Why cheaper methods were rejected."""
    erasing: bool = False
    """Whether it was made for open erasures."""
    gate: GateDocument | None = None
    """The result of the promotion gate, as stored (`core.promotion.gate`)."""
    trials: tuple[TrialDocument, ...] = ()
    """All methods that were tried, with costs and objections, from which the next job predicts its costs."""

    @property
    def rejected(self) -> bool:
        """Whether the version must not become the tip: it failed the gate, or a change of the target left nothing to
        judge its new examples by."""
        if self.gate is None or self.gate["action"] != "reject":
            return False
        unjudged = self.gate["passed"] is None and self.gate.get("reason") == "schema_changed"
        return self.gate["passed"] is False or unjudged


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
        removals_position=max(draft.position, draft.removals_position),
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
