"""The page of a model: state, jobs, history, versions, promotions, memory and spec, with buttons for admins."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Annotated

from fastapi import APIRouter, Query
from starlette.concurrency import run_in_threadpool
from starlette.responses import HTMLResponse, RedirectResponse, Response

from core.clock import now
from core.errors import AmendError, NotFound
from core.jobs.next_due import Outlook, find_outlook
from core.keys.queries import names_of
from core.kprior import State
from core.kprior.model.spec import Spec
from core.ledger.quarantine import count_returned
from core.ledger.spec_history import page_changes, spec_at
from core.models import catalog
from core.promotion.failed_versions import failed_in_service
from core.quality.drift_records import drift_detected_at
from core.tables.keys import Scope
from core.tables.ledger import Change
from core.tables.versions import Promotion, Version, VersionKind
from core.tracking.charts import draw_history
from core.tracking.lineage import Lineage
from core.tracking.links import find_timeline
from core.versions.memory_summary import MemorySummary, summarize_memory
from core.versions.queries import champion_of, first_promotion, frozen_metrics, page_promotions, page_versions
from service import returning_subjects as returned_examples
from service.context import Context, ContextDep
from service.http.auth import Caller
from service.http.pagination import Page, page_of, parse_cursor
from service.http.request_audit import AuditorDep
from service.http.unit_of_work import UnitOfWork
from service.jobs import endpoints as jobs
from service.jobs.schemas import JobResponse
from service.models import endpoints as models
from service.models.schemas import ModelResponse
from service.pages.page_route import PageRoute
from service.pages.quality_chart import QualityChart, read_quality
from service.pages.quarantine import QuarantinedBatch, read_batches
from service.pages.rendering import render
from service.pages.sign_in import FormDep, VisitorDep
from service.versions import endpoints as versions
from service.versions.endpoints import first_of_page

router = APIRouter(prefix="/models/{name}", route_class=PageRoute, include_in_schema=False)

ROWS_PER_LIST, JOBS_PER_LIST = 12, 6
"""Number of rows per list."""
Cursor = Annotated[str | None, Query(max_length=200)]
CONFIRMATIONS = {
    "adapt": "Adaptation requested.",
    "retrain": "Full retrain requested. When it finishes, it is compared with the adapted model.",
    "promote": "The version is now the champion. If it was purged, a job rebuilds it first.",
    "accept": "The examples were put back into force.",
    "discard": "The examples were removed.",
    "accept-returned": "The examples were put into force.",
    "discard-returned": "The examples were removed.",
    "hold": "The model is held. Automatic adaptations, retrains and promotions are paused.",
    "resume": "Automatic adaptations, retrains and promotions are resumed.",
    "cancel": "Cancellation requested.",
}
"""Messages after each button."""


@dataclass(frozen=True)
class PromotionLine:
    """A promotion with its author and its reason."""

    promotion: Promotion
    by: str
    why: str


@dataclass(frozen=True)
class ModelPage:
    """Content of the page."""

    model: ModelResponse
    spec: Spec
    """Spec at the head of the ledger."""
    champion_spec: Spec
    """Equal to `spec` if there is no champion."""
    lineage: Lineage
    champion: Version | None
    outlook: Outlook
    metric: str | None
    quality: QualityChart | None
    chart: str | None
    jobs: Page[JobResponse]
    versions: Page[Version]
    promotions: Page[PromotionLine]
    changes: Sequence[Change]
    memory: MemorySummary | None
    quarantine: Sequence[QuarantinedBatch]
    """Rejected versions that a person has to decide about."""
    returned: int
    """Number of quarantined examples about people whose data was erased."""
    drifted: datetime | None
    """When drift was detected; None if nothing has drifted."""
    failed: int | None
    """Number of a version in service that failed the promotion gate."""


def read_page(context: Context, caller: Caller, name: str, older: Mapping[str, str | None]) -> ModelPage:
    """The content of the page as far as the caller may see it. `older` has the cursor of each list."""
    shown_model = models.show_model(name, caller, context)
    shown_jobs = jobs.list_jobs(caller, context, model=name, limit=JOBS_PER_LIST, after=older["jobs"])
    with context.database.read() as session:
        model = catalog.find(session, name, caller.models)
        # versions to show are loaded completely, before the history, which loads an outline of all versions
        champion = champion_of(session, model)
        shown = page_versions(session, model.id, first_of_page(older["versions"]), ROWS_PER_LIST + 1)
        lineage = Lineage.outline(session, model)
        frozen = frozen_metrics(session, model.id)
        found = page_promotions(session, model.id, first_of_page(older["promotions"]), ROWS_PER_LIST + 1)
        first = first_promotion(session, model.id)
        names = names_of(session, {row.by for row in found}) if Scope.ADMIN in caller.scopes else {}
        changes = page_changes(session, model, model.head + 1, ROWS_PER_LIST)
        outlook = find_outlook(session, model, now())
        quarantine = read_batches(session, model)
        returned = count_returned(session, model) if model.quarantined_count else 0
        drifted = drift_detected_at(session, model.id)
        failed = failed_in_service(session, model.id).get(model.id)
        spec = spec_at(session, model.id, model.spec, champion.position) if champion else lineage.spec
        metric = lineage.headline(champion.metrics) if champion else None
        quality = read_quality(session, model, metric, lineage.versions)
    return ModelPage(
        shown_model,
        lineage.spec,
        spec,
        lineage,
        champion,
        outlook,
        metric,
        quality,
        draw_chart(lineage, frozen, metric) if metric else None,
        shown_jobs,
        page_of(shown, ROWS_PER_LIST, lambda version: version, lambda version: version.number),
        page_of(found, ROWS_PER_LIST, lambda row: explain(row, row.id == first, lineage, names), lambda line: line.id),
        changes,
        load_memory_summary(context, champion) if champion else None,
        quarantine,
        returned,
        drifted,
        failed,
    )


def draw_chart(lineage: Lineage, frozen: Mapping[int, Mapping[str, float]], metric: str) -> str | None:
    """Chart of champions, full retrains and the frozen first version; None with fewer than two positions."""
    line = lineage.line
    if len({version.position for version in (*line, *lineage.trained) if metric in version.metrics}) < 2:
        return None
    first = {line[0].number: line[0].metrics} if line else {}
    return draw_history(
        metric,
        "position",
        {
            "frozen": [(v.position, (dict(frozen) | first).get(v.number, {}).get(metric)) for v in line],
            "adapted": [(v.position, v.metrics.get(metric)) for v in line],
            "retrained": [(v.position, v.metrics.get(metric)) for v in lineage.trained],
        },
    )


def explain(promotion: Promotion, first: bool, lineage: Lineage, names: Mapping[str, str]) -> PromotionLine:
    """Author and reason of a promotion."""
    version = lineage.by_number.get(promotion.version)
    if promotion.by == "erasure":
        why = "does not depend on an erased person's data"
    elif promotion.by != "policy":
        rebuilt = version is not None and version.removals_position > version.position
        back = promotion.previous is not None and (promotion.version < promotion.previous or rebuilt)
        why = f"rolled back from version {promotion.previous}" if back else "promoted manually"
    elif version is None or promotion.previous is None:
        why = "first version" if first else "first version after the model was withdrawn"
    elif version.kind is VersionKind.ADAPTED:
        why = f"adapted to position {version.position}"
    else:
        comparison = lineage.comparison_of(version)
        why = (comparison.result.get("outcome") if comparison else None) or "retrained instead of adapted"
    named = f"{names[promotion.by]} ({promotion.by})" if promotion.by in names else promotion.by
    return PromotionLine(promotion, named, why)


def load_memory_summary(context: Context, champion: Version) -> MemorySummary | None:
    """Summary of the champion's memory; None if its file is not available."""
    summary = context.memories.get(champion.sha256)
    if summary is None:
        try:
            state = State.from_bytes(context.file(champion.file, champion.sha256))
        except AmendError:
            return None
        summary = summarize_memory(context.database, champion, state)
        context.memories.put(champion.sha256, summary)
    return summary


@router.get("")
def show_model(
    name: str,
    visitor: VisitorDep,
    context: ContextDep,
    jobs: Cursor = None,
    versions: Cursor = None,
    promotions: Cursor = None,
    done: Annotated[str, Query(max_length=20)] = "",
) -> Response:
    """Show a model."""
    visitor.caller.require(Scope.READ)
    older = {"jobs": jobs, "versions": versions, "promotions": promotions}
    page = read_page(context, visitor.caller, name, older)
    given = {"page": page, "older": older, "done": CONFIRMATIONS.get(done, ""), "now": now()}
    return HTMLResponse(render("model.html", visitor, mlflow=context.settings.mlflow_pages, **given))


@router.get("/timeline")
def open_timeline(name: str, visitor: VisitorDep, context: ContextDep) -> Response:
    """Redirect to the model's timeline in MLflow, whose URL only MLflow knows."""
    visitor.caller.require(Scope.READ)
    with context.database.read() as session:
        model = catalog.find(session, name, visitor.caller.models)
    settings = context.settings
    if not settings.mlflow_url:
        raise NotFound("mlflow_missing", "MLflow is not configured. Set AMEND_MLFLOW_URL.")
    path = find_timeline(settings.mlflow_url, settings.mlflow_password.get_secret_value(), model.name)
    return RedirectResponse(settings.mlflow_pages + path, 303)


@router.post("/{action}")
async def act(name: str, action: str, visitor: VisitorDep, form: FormDep, auditor: AuditorDep) -> Response:
    """Carry out the action of a button, with the functions of the API."""
    if action not in CONFIRMATIONS:
        raise NotFound("path_not_found", "This page does not exist.")
    visitor.caller.require(Scope.ADMIN)
    write = UnitOfWork(auditor)
    await run_in_threadpool(carry_out, action, name, form, visitor.caller, write)
    return RedirectResponse(f"/models/{name}?done={action}", 303)


def carry_out(action: str, name: str, form: Mapping[str, str], caller: Caller, write: UnitOfWork) -> None:
    if action == "promote":
        versions.promote_version(name, parse_cursor(form.get("version"), 0), caller, write)
    elif action in ("accept", "discard"):
        decide = versions.accept_version if action == "accept" else versions.discard_version
        decide(name, parse_cursor(form.get("version"), 0), caller, write)
    elif action in ("accept-returned", "discard-returned"):
        settle = returned_examples.accept_returned
        if action == "discard-returned":
            settle = returned_examples.discard_returned
        settle(name, returned_examples.ChosenExamples(ids=None), caller, write.context, write)
    elif action == "cancel":
        jobs.cancel_job(form.get("job", ""), caller, write)
    else:
        actions = {
            "adapt": jobs.adapt,
            "retrain": jobs.retrain,
            "hold": models.hold_model,
            "resume": models.resume_model,
        }
        actions[action](name, caller, write)
