"""Filing requests: one with all its details, or a list of them."""

from collections.abc import Mapping
from typing import Any

from fastapi import APIRouter
from starlette.concurrency import run_in_threadpool
from starlette.responses import HTMLResponse, RedirectResponse, Response

from core.clock import now
from core.erasure import listings
from core.errors import AmendError
from service.context import Context, ContextDep
from service.erasures import endpoints as erasures
from service.erasures.schemas import ErasureResponse, ErasuresResponse, NewErasures
from service.http.problems import STATUS
from service.http.request_audit import AuditorDep
from service.http.unit_of_work import UnitOfWork
from service.pages.page_route import PageRoute
from service.pages.privacy.officers import OfficerDep, OfficersForm
from service.pages.privacy.parsing import ALIAS_SEPARATOR, COLUMNS, explain, parse_filing, parse_list
from service.pages.privacy.views import needs_second_person, view_all
from service.pages.rendering import render
from service.pages.sign_in import Visitor

router = APIRouter(prefix="/privacy", route_class=PageRoute, include_in_schema=False)


@router.get("/file")
def show_form(visitor: OfficerDep, context: ContextDep) -> Response:
    """Show the forms for one request and for several."""
    return HTMLResponse(render_form(context, visitor, {}))


@router.post("/file/prepare")
def prepare_form(visitor: OfficerDep, form: OfficersForm, context: ContextDep) -> Response:
    """Show the form for a person who was looked up."""
    return HTMLResponse(render_form(context, visitor, {"subject": form.get("subject", "")}))


def render_form(context: Context, visitor: Visitor, form: Mapping[str, str], problem: str = "") -> str:
    settings = context.settings
    given: dict[str, Any] = {"form": form, "problem": problem, "columns": COLUMNS, "separator": ALIAS_SEPARATOR}
    return render(
        "privacy/file.html",
        visitor,
        **given,
        held=settings.erasure_hold,
        second=needs_second_person(context),
        today=f"{now():%Y-%m-%d}",
        limit=erasures.MAX_REQUESTS,
    )


def hold_in(form: Mapping[str, str], context: Context) -> bool | None:
    """Whether the form asks to hold requests; None where a second person has to approve them anyway."""
    return None if needs_second_person(context) else "hold" in form


def refuse_form(context: Context, visitor: Visitor, form: Mapping[str, str], error: AmendError) -> Response:
    """The form again, with what is wrong."""
    page = render_form(context, visitor, form, explain(error))
    return HTMLResponse(page, STATUS[type(error)])


@router.post("/file")
async def file_request(visitor: OfficerDep, form: OfficersForm, context: ContextDep, auditor: AuditorDep) -> Response:
    """File one request, and show it."""

    def file() -> Response:
        try:
            body = parse_filing(form, hold_in(form, context))
            response = erasures.request_erasure(body, visitor.caller, context, UnitOfWork(auditor))
        except AmendError as error:
            return refuse_form(context, visitor, form, error)
        filed = ErasureResponse.model_validate_json(bytes(response.body))
        return RedirectResponse(f"/privacy/{filed.id}?done=filed", 303)

    return await run_in_threadpool(file)


@router.post("/file/several")
async def file_requests(visitor: OfficerDep, form: OfficersForm, context: ContextDep, auditor: AuditorDep) -> Response:
    """File a list of requests, all or none, and show them with their letters."""

    def file() -> Response:
        try:
            body = NewErasures(requests=parse_list(form.get("list", ""), hold_in(form, context)))
            response = erasures.request_erasures(body, visitor.caller, context, UnitOfWork(auditor))
        except AmendError as error:
            return refuse_form(context, visitor, form, error)
        ids = dict.fromkeys(filed.id for filed in ErasuresResponse.model_validate_json(bytes(response.body)).items)
        with context.database.read() as session:
            views = view_all(session, listings.find_requests(session, list(ids)))
        return HTMLResponse(render("privacy/filed.html", visitor, requests=views, given=len(body.requests)))

    return await run_in_threadpool(file)
