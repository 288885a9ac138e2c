"""The first page: all models at a glance, requests to be forgotten by due date, and whether the parts are there."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated

from fastapi import APIRouter, Query, Request
from sqlalchemy.orm import Session
from starlette.concurrency import run_in_threadpool
from starlette.responses import HTMLResponse, RedirectResponse, Response

from core.database import now
from core.erasure import queries as erasures
from core.jobs.outlook import Outlook, find_outlook
from core.jobs.queries import unfinished_jobs
from core.models import catalog
from core.tables.erasures import PENDING, Erasure
from core.tables.jobs import Job
from core.tables.models import Model
from core.tables.versions import Version
from core.tracking.lineage import Lineage, main_metric
from core.versions.queries import champion_of, is_withdrawn
from service.context import Context, ContextDep
from service.operations import check_parts
from service.pages import charts
from service.pages.rendering import render
from service.pages.route import PageRoute
from service.pages.visitors import Visitor, look_for_visitor, sign_in_page

router = APIRouter(route_class=PageRoute, include_in_schema=False)

MODELS_PER_PAGE = 24
"""On one page."""
SPARKLINE_VERSIONS = 100
"""The newest versions, whose metric is drawn."""
MAX_DUE_ERASURES = 5
"""Erasures that the overview lists: those that are due first."""


@dataclass(frozen=True)
class ModelCard:
    """A model at a glance."""

    model: Model
    lineage: Lineage
    champion: Version | None
    pending: int
    metric: str | None
    value: float | None
    history: Sequence[float]
    """The metric of the last versions in service, the oldest first."""
    jobs: Sequence[Job]
    """That wait or run."""
    outlook: Outlook
    withdrawn: bool

    @property
    def spark(self) -> str:
        return charts.sparkline(self.history)


@dataclass(frozen=True)
class Overview:
    """What the first page tells."""

    cards: Sequence[ModelCard]
    next: str
    """The cursor of the next page; empty on the last."""
    erasures: Sequence[Erasure]
    """Those that are due next."""
    overdue: int
    pending: int


def make_card(session: Session, model: Model) -> ModelCard:
    champion = champion_of(session, model)  # before the others: it is read whole
    lineage = Lineage.outline(session, model)
    metric = main_metric(champion.metrics) if champion else None
    history = (
        [v.metrics[metric] for v in lineage.line[-SPARKLINE_VERSIONS:] if v.metrics.get(metric) is not None]
        if metric
        else []
    )
    return ModelCard(
        model,
        lineage,
        champion,
        model.head - (champion.position if champion else 0),
        metric,
        champion.metrics.get(metric) if champion and metric else None,
        history,
        unfinished_jobs(session, model.id),
        find_outlook(session, model, now()),
        is_withdrawn(session, model),
    )


def load_overview(context: Context, visitor: Visitor, after: str) -> Overview:
    with context.database.read() as session:
        found = catalog.page(session, visitor.caller.models, after, MODELS_PER_PAGE + 1)
        cards = [make_card(session, model) for model in found[:MODELS_PER_PAGE]]
        due = erasures.next_due(session, MAX_DUE_ERASURES) if visitor.sees_people else ()
        counts = erasures.count_erasures(session) if visitor.sees_people else ()
    pending = sum(count for state, count, _ in counts if state in PENDING)
    after = found[MODELS_PER_PAGE - 1].name if len(found) > MODELS_PER_PAGE else ""
    return Overview(cards, after, due, sum(overdue for *_, overdue in counts), pending)


@router.get("/favicon.ico")
async def show_icon() -> Response:
    """What browsers ask for where a page names no icon: the docs, receipts."""
    return RedirectResponse("/assets/icon.svg", 308)


@router.get("/")
async def show_overview(
    request: Request, context: ContextDep, after: Annotated[str, Query(max_length=63)] = ""
) -> Response:
    """All models; to a stranger, how to sign in."""
    visitor = await look_for_visitor(request)
    if visitor is None:
        return sign_in_page("/")
    if not visitor.sees_models:
        return RedirectResponse("/privacy", 303)
    overview = await run_in_threadpool(load_overview, context, visitor, after)
    parts = (await check_parts(context)).model_dump()
    return HTMLResponse(render("overview.html", visitor, overview=overview, after=after, parts=parts, now=now()))
