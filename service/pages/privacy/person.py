"""Looking up a person: data, requests and receipts, access report, and restriction of processing."""

from collections.abc import Mapping

from fastapi import APIRouter
from starlette.concurrency import run_in_threadpool
from starlette.responses import HTMLResponse, RedirectResponse, Response

from core.errors import AmendError, Forbidden
from service import subjects
from service.context import Context, ContextDep
from service.http.problems import STATUS
from service.http.request_audit import Auditor, AuditorDep
from service.http.unit_of_work import UnitOfWork
from service.pages.page_route import PageRoute
from service.pages.privacy.officers import OfficerDep, OfficersForm
from service.pages.privacy.parsing import explain, filing_values, parse
from service.pages.privacy.request import DOCUMENT_POLICY
from service.pages.rendering import render
from service.pages.sign_in import Visitor
from service.rights import past_requests, restrictions
from service.rights.restrictions import NewRestriction, RestrictionResponse
from service.subjects import NDJSON, SubjectQuery

router = APIRouter(prefix="/privacy", route_class=PageRoute, include_in_schema=False)


def subject_in(form: Mapping[str, str]) -> SubjectQuery:
    return parse(SubjectQuery, {"subject": form.get("subject", "").strip()})


@router.get("/person")
def show_form(visitor: OfficerDep) -> Response:
    return HTMLResponse(render("privacy/person.html", visitor, form={}, problem="", found=None))


@router.post("/person")
async def look_up(visitor: OfficerDep, form: OfficersForm, context: ContextDep, auditor: AuditorDep) -> Response:
    """Show what is stored about a person, and the person's requests and receipts."""
    return await run_in_threadpool(render_person, visitor, form, context, auditor)


def render_person(
    visitor: Visitor, form: Mapping[str, str], context: Context, auditor: Auditor, refused: AmendError | None = None
) -> Response:
    try:
        query = subject_in(form)
        found = subjects.look_up_subject(query, visitor.caller, context, auditor)
        requests = past_requests.find_requests(query, visitor.caller, context, auditor)
    except Forbidden:
        raise
    except AmendError as error:
        page = render("privacy/person.html", visitor, form=form, problem=explain(error), found=None)
        return HTMLResponse(page, STATUS[type(error)])
    problem = "" if refused is None else explain(refused)
    values = {"form": {**form, "subject": query.subject}, "problem": problem, "found": found, "requests": requests}
    status = 200 if refused is None else STATUS[type(refused)]
    return HTMLResponse(render("privacy/person.html", visitor, **values), status)


@router.post("/person/report")
def write_report(visitor: OfficerDep, form: OfficersForm, context: ContextDep, auditor: AuditorDep) -> Response:
    """Show the access report (GDPR Art. 15)."""
    response = subjects.export_subject(subject_in(form), visitor.caller, context, auditor, accept="text/html")
    response.headers["Content-Security-Policy"] = DOCUMENT_POLICY
    return response


@router.post("/person/export")
def export(visitor: OfficerDep, form: OfficersForm, context: ContextDep, auditor: AuditorDep) -> Response:
    """Download all examples about the person (GDPR Art. 15 and 20)."""
    response = subjects.export_subject(subject_in(form), visitor.caller, context, auditor, accept=NDJSON)
    # without the identifier: browsers keep the names of downloads
    response.headers["Content-Disposition"] = 'attachment; filename="data.ndjson"'
    return response


@router.post("/person/restrict")
async def restrict(visitor: OfficerDep, form: OfficersForm, context: ContextDep, auditor: AuditorDep) -> Response:
    """Restrict the processing of the person's data (GDPR Art. 18), and show the restriction."""

    def act() -> Response:
        try:
            body = parse(NewRestriction, filing_values({**form, "aliases": ""}, hold=None))
            response = restrictions.restrict_subject(body, visitor.caller, context, UnitOfWork(auditor))
        except AmendError as error:
            return render_person(visitor, form, context, auditor, error)
        id = RestrictionResponse.model_validate_json(bytes(response.body)).id
        return RedirectResponse(f"/privacy/{id}?done=restrict", 303)

    return await run_in_threadpool(act)
