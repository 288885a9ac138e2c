"""A model's page: what it is, how it did, what was done with it, what it remembers; and buttons for its admins."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated

from fastapi import APIRouter, Query, Request
from starlette.concurrency import run_in_threadpool
from starlette.responses import HTMLResponse, RedirectResponse, Response

from core.database import now
from core.errors import AmendError, NotFound
from core.jobs.outlook import Outlook, find_outlook
from core.keys.queries import names_of
from core.kprior import State
from core.kprior.model.spec import Spec
from core.ledger.specs import page_changes, spec_at
from core.models import catalog
from core.tables.keys import Scope
from core.tables.ledger import Change
from core.tables.versions import Promotion, Version, VersionKind
from core.tracking.lineage import Lineage, main_metric
from core.tracking.links import find_timeline
from core.versions.queries import champion_of, first_promotion, frozen_metrics, page_promotions, page_versions
from core.versions.remembered import MemorySummary, summarize_memory
from service.context import Context, ContextDep
from service.http.auth import Caller
from service.http.pages import Page, page_of, parse_cursor
from service.http.unit_of_work import UnitOfWork
from service.jobs import endpoints as jobs
from service.jobs.schemas import JobAnswer
from service.models import endpoints as models
from service.models.schemas import ModelAnswer
from service.pages.charts import Chart, draw_lines
from service.pages.rendering import render
from service.pages.route import PageRoute
from service.pages.visitors import FormDep, VisitorDep
from service.versions import endpoints as versions
from service.versions.endpoints import first_of_page

router = APIRouter(prefix="/models/{name}", route_class=PageRoute, include_in_schema=False)

ROWS_PER_LIST, JOBS_PER_LIST = 12, 6
"""Of each list, on one page."""
Cursor = Annotated[str | None, Query(max_length=200)]
CONFIRMATIONS = {
    "adapt": "An adaptation was asked for.",
    "retrain": "A full retrain was asked for; it is compared with the adapted model when it is done.",
    "promote": "The version answers predictions now.",
    "hold": "The model is held: nothing is adapted, retrained or promoted by itself.",
    "resume": "The policy is carried out again.",
    "cancel": "The job was told to stop.",
}
"""What the page says after each button."""


@dataclass(frozen=True)
class PromotionLine:
    """What became champion, by whom and why."""

    promotion: Promotion
    by: str
    why: str


@dataclass(frozen=True)
class ModelPage:
    """What a model's page tells."""

    model: ModelAnswer
    spec: Spec
    """At the head."""
    champion_spec: Spec
    """The same where there is none."""
    lineage: Lineage
    champion: Version | None
    outlook: Outlook
    metric: str | None
    chart: Chart | None
    jobs: Page[JobAnswer]
    versions: Page[Version]
    promotions: Page[PromotionLine]
    changes: Sequence[Change]
    memory: MemorySummary | None


def read_page(context: Context, caller: Caller, name: str, older: Mapping[str, str | None]) -> ModelPage:
    """Everything about a model that a caller may see; `older`: where each list begins."""
    answer = models.show_model(name, caller, context)
    listed = jobs.list_jobs(caller, context, model=name, limit=JOBS_PER_LIST, after=older["jobs"])
    with context.database.read() as session:
        model = catalog.find(session, name, caller.models)
        # what is shown of a version is read whole, before the history, for which the others are read in outline
        champion = champion_of(session, model)
        shown = page_versions(session, model.id, first_of_page(older["versions"]), ROWS_PER_LIST + 1)
        lineage = Lineage.outline(session, model)
        frozen = frozen_metrics(session, model.id)
        found = page_promotions(session, model.id, first_of_page(older["promotions"]), ROWS_PER_LIST + 1)
        first = first_promotion(session, model.id)
        names = names_of(session, {row.by for row in found}) if Scope.ADMIN in caller.scopes else {}
        changes = page_changes(session, model, model.head + 1, ROWS_PER_LIST)
        outlook = find_outlook(session, model, now())
        spec = spec_at(session, model.id, model.spec, champion.position) if champion else lineage.spec
    metric = main_metric(champion.metrics) if champion else None
    return ModelPage(
        answer,
        lineage.spec,
        spec,
        lineage,
        champion,
        outlook,
        metric,
        draw_history(lineage, frozen, metric) if metric else None,
        listed,
        page_of(shown, ROWS_PER_LIST, lambda version: version, lambda version: version.number),
        page_of(found, ROWS_PER_LIST, lambda row: explain(row, row.id == first, lineage, names), lambda line: line.id),
        changes,
        load_memory_summary(context, champion) if champion else None,
    )


def draw_history(lineage: Lineage, frozen: Mapping[int, Mapping[str, float]], metric: str) -> Chart | None:
    """The model in service, full retrains and the first version, over the ledger."""
    if not lineage.line:
        return None
    first = lineage.line[0]
    known = {v.number: frozen.get(v.number, {}).get(metric) for v in lineage.line} | {
        first.number: first.metrics.get(metric)
    }
    lines: dict[str, list[tuple[int, float | None]]] = {
        "frozen": [(v.position, known[v.number]) for v in lineage.line],
        "adapted": [(v.position, v.metrics.get(metric)) for v in lineage.line],
        "retrained": [(v.position, v.metrics.get(metric)) for v in lineage.trained],
    }
    return draw_lines(metric, {kind: [(x, y) for x, y in line if y is not None] for kind, line in lines.items()})


def explain(promotion: Promotion, first: bool, lineage: Lineage, names: Mapping[str, str]) -> PromotionLine:
    """Who promoted a version, and why."""
    version = lineage.by_number.get(promotion.version)
    if promotion.by == "erasure":
        why = "it does not know a person who was erased"
    elif promotion.by != "policy":
        back = promotion.previous is not None and promotion.version < promotion.previous
        why = f"rolled back from version {promotion.previous}" if back else "promoted by hand"
    elif version is None or promotion.previous is None:
        why = "the first version" if first else "the first version since the model was withdrawn"
    elif version.kind is VersionKind.ADAPTED:
        why = f"adapted to position {version.position}"
    else:
        comparison = lineage.comparison_of(version)
        why = (comparison.figures.get("outcome") if comparison else None) or "trained anew in place of an adaptation"
    named = f"{names[promotion.by]} ({promotion.by})" if promotion.by in names else promotion.by
    return PromotionLine(promotion, named, why)


def load_memory_summary(context: Context, champion: Version) -> MemorySummary | None:
    """What the champion remembers; None while its file is not to be had."""
    found = context.memories.get(champion.sha256)
    if found is None:
        try:
            state = State.from_bytes(context.file(champion.file, champion.sha256))
        except AmendError:
            return None
        found = summarize_memory(context.database, champion, state)
        context.memories.put(champion.sha256, found)
    return found


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
    """All about a model."""
    visitor.caller.require(Scope.READ)
    older = {"jobs": jobs, "versions": versions, "promotions": promotions}
    page = read_page(context, visitor.caller, name, older)
    given = {"page": page, "older": older, "done": CONFIRMATIONS.get(done, ""), "now": now()}
    return HTMLResponse(render("model.html", visitor, mlflow=context.settings.mlflow_pages, **given))


@router.get("/timeline")
def open_timeline(name: str, visitor: VisitorDep, context: ContextDep) -> Response:
    """MLflow's page of the model over its ledger: only MLflow knows its address."""
    visitor.caller.require(Scope.READ)
    with context.database.read() as session:
        model = catalog.find(session, name, visitor.caller.models)
    settings = context.settings
    if not settings.mlflow_url:
        raise NotFound("mlflow_missing", "There is no MLflow here: see AMEND_MLFLOW_URL.")
    path = find_timeline(settings.mlflow_url, settings.mlflow_password.get_secret_value(), model.name)
    return RedirectResponse(settings.mlflow_pages + path, 303)


@router.post("/{action}")
async def act(
    request: Request, name: str, action: str, visitor: VisitorDep, form: FormDep, context: ContextDep
) -> Response:
    """What a button does: what the API does, by the same functions."""
    if action not in CONFIRMATIONS:
        raise NotFound("path_not_found", "There is no such page.")
    visitor.caller.require(Scope.ADMIN)
    write = UnitOfWork(context, request.state.request_id, None, b"")
    await run_in_threadpool(carry_out, action, name, form, visitor.caller, write)
    return RedirectResponse(f"/models/{name}?done={action}", 303)


def carry_out(action: str, name: str, form: Mapping[str, str], caller: Caller, write: UnitOfWork) -> None:
    if action == "adapt":
        jobs.adapt(name, caller, write)
    elif action == "retrain":
        jobs.retrain(name, caller, write)
    elif action == "promote":
        versions.promote_version(name, parse_cursor(form.get("version"), 0), caller, write)
    elif action == "hold":
        models.hold_model(name, caller, write)
    elif action == "resume":
        models.resume_model(name, caller, write)
    else:
        jobs.cancel_job(form.get("job", ""), caller, write)
