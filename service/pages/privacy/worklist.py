"""The first privacy page: open requests by due date, and what needs attention."""

from typing import Annotated

from fastapi import APIRouter, Query
from starlette.responses import HTMLResponse, Response

from core.erasure import queries
from core.tables.erasures import PENDING, ErasureState
from service import register as register_endpoints
from service.context import ContextDep
from service.pages.page_route import PageRoute
from service.pages.privacy.officers import ApproverDep
from service.pages.privacy.views import UNDECIDED, view_all
from service.pages.rendering import render

router = APIRouter(prefix="/privacy", route_class=PageRoute, include_in_schema=False)

ROWS_PER_PAGE = 25


@router.get("")
def show_worklist(
    visitor: ApproverDep,
    context: ContextDep,
    after: Annotated[str | None, Query(max_length=36)] = None,
    verify: bool = False,
) -> Response:
    """Show the open requests by due date, and the restrictions that are in effect."""
    with context.database.read() as session:
        found = queries.next_due(session, ROWS_PER_PAGE + 1, after)
        restricted = queries.page_erasures(session, ErasureState.RESTRICTED, None, None, ROWS_PER_PAGE)
        views = view_all(session, [*found[:ROWS_PER_PAGE], *restricted])
        counted = queries.count_erasures(session)
        soon = queries.measure_open(session).due_soon
    counts = {state: count for state, count, _ in counted}
    return HTMLResponse(
        render(
            "privacy/worklist.html",
            visitor,
            pending=[view for view in views if not view.is_restriction],
            restricted=[view for view in views if view.is_restriction],
            next=found[ROWS_PER_PAGE - 1].id if len(found) > ROWS_PER_PAGE else None,
            after=after,
            open=sum(counts.get(state, 0) for state in PENDING),
            undecided=sum(counts.get(state, 0) for state in UNDECIDED),
            counts=counts,
            overdue=sum(overdue for *_, overdue in counted),
            soon=soon,
            chain=register_endpoints.verify_receipts(visitor.caller, context) if verify else None,
        )
    )
