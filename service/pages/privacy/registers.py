"""The register of requests and the yearly statistics, as pages and as CSV files."""

from typing import Annotated

from fastapi import APIRouter, Query
from starlette.responses import HTMLResponse, Response

from core.erasure import listings
from core.erasure.statistics import yearly_statistics
from core.tables.erasures import ErasureState
from service.context import ContextDep
from service.erasures import statistics
from service.erasures.statistics import MAX_YEAR, MIN_YEAR
from service.http.request_audit import AuditorDep
from service.pages.page_route import PageRoute
from service.pages.privacy.officers import OfficerDep
from service.pages.privacy.views import view_all
from service.pages.rendering import render

router = APIRouter(prefix="/privacy", route_class=PageRoute, include_in_schema=False)

ROWS_PER_PAGE = 50
Year = Annotated[int | None, Query(ge=MIN_YEAR, le=MAX_YEAR)]


@router.get("/register")
def show_register(
    visitor: OfficerDep,
    context: ContextDep,
    year: Year = None,
    state: ErasureState | None = None,
    after: Annotated[str | None, Query(max_length=36)] = None,
) -> Response:
    """Show all requests, the last received first."""
    with context.database.read() as session:
        last = None if after is None else listings.find_request(session, after)
        found = listings.page_register(session, year, last, ROWS_PER_PAGE + 1, state, newest_first=True)
        views = view_all(session, found[:ROWS_PER_PAGE])
        years = listings.years_of(session)
    return HTMLResponse(
        render(
            "privacy/register.html",
            visitor,
            requests=views,
            years=years,
            year=year,
            state=state,
            states=list(ErasureState),
            after=after,
            next=found[ROWS_PER_PAGE - 1].id if len(found) > ROWS_PER_PAGE else None,
        )
    )


@router.get("/register.csv")
def download_register(visitor: OfficerDep, context: ContextDep, auditor: AuditorDep, year: Year = None) -> Response:
    return statistics.export_register(visitor.caller, context, auditor, year)


@router.get("/statistics")
def show_statistics(visitor: OfficerDep, context: ContextDep) -> Response:
    """Show the numbers of requests by year."""
    with context.database.read() as session:
        years = yearly_statistics(session)
    return HTMLResponse(render("privacy/statistics.html", visitor, years=years))


@router.get("/statistics.csv")
def download_statistics(visitor: OfficerDep, context: ContextDep) -> Response:
    return statistics.show_statistics(visitor.caller, context, accept="text/csv")
