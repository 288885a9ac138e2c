"""Drift of a model: recent examples compared with those of the last full training."""

from __future__ import annotations

from fastapi import APIRouter

from core.errors import Conflict
from core.kprior import State
from core.models import catalog
from core.quality.drift_records import is_current
from core.quality.drift_report import measure_drift
from core.quality.drift_rows import DriftScope
from core.tables.documents import DriftDocument
from core.tables.quality import DriftReport
from service.context import Context, ContextDep
from service.http.auth import Caller, Reader
from service.http.problems import problem_responses
from service.http.routes import AuthenticatedRoute
from service.models.endpoints import Name

router = APIRouter(prefix="/v1/models/{name}/drift", tags=["Quality"], route_class=AuthenticatedRoute)


@router.get("", response_model=DriftDocument, responses=problem_responses(404, 409))
def show_drift(name: Name, caller: Reader, context: ContextDep) -> DriftDocument:
    """Compare the most recent examples with the examples of the last full training: the distribution of each column,
    and of the champion's predictions.
    """
    return find_report(context, caller, name)


def find_report(context: Context, caller: Caller, name: str) -> DriftDocument:
    """The stored report if nothing has changed since; otherwise a new one, which is not stored."""
    with context.database.read() as session:
        model = catalog.find(session, name, caller.models)
        scope = DriftScope.of(session, model)
        if scope is None:
            message = "The model has no champion, so there is nothing to compare. Train it with an adaptation."
            raise Conflict("champion_missing", message)
        stored = session.get(DriftReport, model.id)
        if stored is not None and stored.report is not None and is_current(session, model, scope.trained_at, stored):
            return stored.report
    state = State.from_bytes(context.file(scope.champion.file, scope.champion.sha256))
    return measure_drift(context.database, scope, state)
