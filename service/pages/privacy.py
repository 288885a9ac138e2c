"""The privacy page: erasure requests with their due dates and receipts."""

from typing import Annotated

from fastapi import APIRouter, Query
from starlette.responses import HTMLResponse, Response

from core.clock import now
from core.erasure.queries import count_erasures, next_due
from core.errors import NotFound
from core.tables.erasures import PENDING, ErasureState
from core.tables.keys import Scope
from service.context import ContextDep
from service.erasures import endpoints as erasures
from service.http.auth import Caller
from service.pages.rendering import render
from service.pages.route import POLICY, PageRoute
from service.pages.visitors import VisitorDep

router = APIRouter(prefix="/privacy", route_class=PageRoute, include_in_schema=False)

ROWS_PER_PAGE = 25
MAX_PENDING = 100
RECEIPT_POLICY = POLICY.replace("style-src 'self'", "style-src 'unsafe-inline'")
"""Receipts are self-contained files with inline styles."""


def require_eraser(caller: Caller) -> None:
    caller.require(Scope.ERASE)
    erasures.require_unrestricted(caller)


@router.get("")
def show_register(
    visitor: VisitorDep,
    context: ContextDep,
    state: ErasureState | None = None,
    after: Annotated[str | None, Query(max_length=200)] = None,
    verify: bool = False,
) -> Response:
    """Show the open requests by due date, and all requests."""
    caller = visitor.caller
    require_eraser(caller)
    with context.database.read() as session:
        pending = [erasures.to_response(session, row) for row in next_due(session, MAX_PENDING)]
        found = count_erasures(session)
    counts = {state: count for state, count, _ in found}
    return HTMLResponse(
        render(
            "privacy.html",
            visitor,
            pending=pending,
            waiting=sum(counts.get(one, 0) for one in PENDING),
            counts=counts,
            overdue=sum(overdue for *_, overdue in found),
            states=list(ErasureState),
            state=state,
            register=erasures.list_erasures(caller, context, state=state, limit=ROWS_PER_PAGE, after=after),
            after=after,
            chain=erasures.verify_receipts(caller, context) if verify else None,
            now=now(),
        )
    )


@router.get("/{id}/{document}")
def show_document(id: str, document: str, visitor: VisitorDep, context: ContextDep) -> Response:
    """Show a receipt or a refusal as a printable page."""
    require_eraser(visitor.caller)
    show = {"receipt": erasures.show_receipt, "refusal": erasures.show_refusal}.get(document)
    if show is None:
        raise NotFound("path_not_found", "This page does not exist.")
    response = show(id, visitor.caller, context, accept="text/html")
    response.headers["Content-Security-Policy"] = RECEIPT_POLICY
    return response
