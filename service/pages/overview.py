"""The overview page: models, open erasure requests and system status."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated

from fastapi import APIRouter, Query, Request
from sqlalchemy.orm import Session
from starlette.concurrency import run_in_threadpool
from starlette.responses import HTMLResponse, RedirectResponse, Response

from core.charts import sparkline
from core.clock import now
from core.erasure import queries as erasures
from core.jobs.next_due import Outlook, find_outlook
from core.jobs.queries import unfinished_jobs
from core.models import catalog
from core.quality.queries import newest_by_job
from core.tables.erasures import PENDING, Erasure
from core.tables.jobs import Job
from core.tables.models import Model
from core.tables.versions import Version
from core.tracking.lineage import Lineage
from core.versions.queries import champion_of, is_withdrawn, newest_metrics
from service.context import Context, ContextDep
from service.health import check_components
from service.models.endpoints import covered_position
from service.pages.page_route import PageRoute
from service.pages.rendering import render
from service.pages.sign_in import Visitor, look_for_visitor, sign_in_page

router = APIRouter(route_class=PageRoute, include_in_schema=False)

MODELS_PER_PAGE = 12
SPARKLINE_VERSIONS = 100
"""Number of versions in a sparkline."""
MAX_DUE_ERASURES = 5
"""Number of erasure requests on the overview."""


@dataclass(frozen=True)
class ModelCard:
    """Summary of a model."""

    model: Model
    lineage: Lineage
    champion: Version | None
    pending: int
    metric: str | None
    value: float | None
    history: Sequence[float]
    """Metric of the last champions, oldest first."""
    on_new_data: bool
    """Whether `history` has test-then-train metrics rather than holdout metrics."""
    jobs: Sequence[Job]
    """Queued and running jobs."""
    outlook: Outlook
    withdrawn: bool

    @property
    def spark(self) -> str:
        return sparkline(self.history)


@dataclass(frozen=True)
class Overview:
    """Content of the overview."""

    cards: Sequence[ModelCard]
    next: str
    """Cursor of the next page; empty on the last."""
    erasures: Sequence[Erasure]
    """Open requests with the nearest due dates."""
    overdue: int
    pending: int


def make_card(session: Session, model: Model) -> ModelCard:
    champion = champion_of(session, model)  # before the outline of all versions, to load it completely
    lineage = Lineage.outline(session, model, metrics=False)
    metric = lineage.headline(champion.metrics) if champion else None
    history = newest_by_job(session, model.id, metric, SPARKLINE_VERSIONS) if metric else []
    on_new_data = len(history) > 1
    if metric and not on_new_data:
        history = newest_metrics(session, model.id, metric, SPARKLINE_VERSIONS)
    return ModelCard(
        model,
        lineage,
        champion,
        model.head - covered_position(model, champion),
        metric,
        champion.metrics.get(metric) if champion and metric else None,
        history,
        on_new_data,
        unfinished_jobs(session, model.id),
        find_outlook(session, model, now()),
        is_withdrawn(session, model),
    )


def load_overview(context: Context, visitor: Visitor, after: str) -> Overview:
    with context.database.read() as session:
        found = catalog.page(session, visitor.caller.models, after, MODELS_PER_PAGE + 1)
        cards = [make_card(session, model) for model in found[:MODELS_PER_PAGE]]
        due = erasures.next_due(session, MAX_DUE_ERASURES) if visitor.sees_erasures else ()
        counts = erasures.count_erasures(session) if visitor.sees_erasures else ()
    pending = sum(count for state, count, _ in counts if state in PENDING)
    after = found[MODELS_PER_PAGE - 1].name if len(found) > MODELS_PER_PAGE else ""
    return Overview(cards, after, due, sum(overdue for *_, overdue in counts), pending)


@router.get("/favicon.ico")
async def show_icon() -> Response:
    """Browsers request this icon for pages that name none, such as the API documentation and receipts."""
    return RedirectResponse("/assets/icon.svg", 308)


@router.get("/")
async def show_overview(
    request: Request, context: ContextDep, after: Annotated[str, Query(max_length=63)] = ""
) -> Response:
    """Show all models, or the sign-in form."""
    visitor = await look_for_visitor(request)
    if visitor is None:
        return sign_in_page(context, "/")
    if not visitor.sees_models:
        return RedirectResponse("/privacy", 303)
    overview = await run_in_threadpool(load_overview, context, visitor, after)
    system = (await check_components(context)).model_dump()
    return HTMLResponse(render("overview.html", visitor, overview=overview, after=after, system=system, now=now()))
