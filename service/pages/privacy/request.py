"""The page of a request: facts, history, decisions, letters and documents."""

from collections.abc import Mapping
from typing import Annotated

from fastapi import APIRouter, Query
from starlette.concurrency import run_in_threadpool
from starlette.responses import HTMLResponse, RedirectResponse, Response

from core.erasure import listings
from core.erasure.letters import LetterKind
from core.errors import AmendError, NotFound
from core.tables.keys import Scope
from service.context import Context, ContextDep
from service.erasures import bundles, letters, notices
from service.erasures import endpoints as erasures
from service.erasures.schemas import GivenReason
from service.http.auth import Caller
from service.http.problems import STATUS
from service.http.request_audit import AuditorDep
from service.http.unit_of_work import UnitOfWork
from service.pages.page_route import POLICY, PageRoute
from service.pages.privacy.failures import advise
from service.pages.privacy.officers import ApproverDep, ApproversForm, OfficerDep, OfficersForm
from service.pages.privacy.parsing import explain, parse
from service.pages.privacy.views import needs_second_person, view_all
from service.pages.rendering import render
from service.pages.sign_in import Visitor
from service.rights import restrictions

router = APIRouter(prefix="/privacy", route_class=PageRoute, include_in_schema=False)

DOCUMENT_POLICY = POLICY.replace("style-src 'self'", "style-src 'unsafe-inline'")
"""Documents are self-contained files with inline styles."""
APPROVERS_ACTIONS = ("approve", "hold", "refuse")
CONFIRMATIONS = {
    "filed": "The request was filed. Send the person a confirmation of receipt.",
    "approve": "The request was approved.",
    "hold": "The request is held until somebody approves, refuses or withdraws it.",
    "refuse": "The request was refused. The law requires a letter to the person.",
    "withdraw": "The request was withdrawn.",
    "extend": "The due date was extended. Tell the person now: the law requires it within the first month.",
    "retry": "The failed erasure is tried again.",
    "restrict": "The processing of the person's data is restricted.",
    "lift": "The restriction was lifted.",
}
"""The sentence that a page shows after an action."""


@router.get("/{id}")
def show_request(
    id: str, visitor: ApproverDep, context: ContextDep, done: Annotated[str, Query(max_length=20)] = ""
) -> Response:
    """Show a request."""
    return HTMLResponse(render_request(context, visitor, id, done=CONFIRMATIONS.get(done, "")))


def render_request(context: Context, visitor: Visitor, id: str, done: str = "", problem: str = "") -> str:
    with context.database.read() as session:
        [view] = view_all(session, [listings.find_request(session, id)])
    own = needs_second_person(context) and view.filer == visitor.caller.key_id
    return render("privacy/request.html", visitor, request=view, done=done, problem=problem, own=own, advise=advise)


@router.post("/{id}/bundle")
def download_bundle(
    id: str, visitor: OfficerDep, _form: OfficersForm, context: ContextDep, auditor: AuditorDep
) -> Response:
    """Download the evidence about an erasure. A button, not a link: the register records each download."""
    return bundles.download_bundle(id, visitor.caller, context, auditor)


@router.post("/{id}/{action}")
async def act(
    id: str, action: str, visitor: ApproverDep, form: ApproversForm, context: ContextDep, auditor: AuditorDep
) -> Response:
    """Carry out the action of a button, with the functions of the API."""
    if action not in APPROVERS_ACTIONS:
        visitor.caller.require(Scope.ERASE)
    try:
        await run_in_threadpool(carry_out, action, id, form, visitor.caller, UnitOfWork(auditor))
    except AmendError as error:
        if isinstance(error, NotFound):
            raise
        page = await run_in_threadpool(render_request, context, visitor, id, problem=explain(error))
        return HTMLResponse(page, STATUS[type(error)])
    return RedirectResponse(f"/privacy/{id}?done={action}", 303)


def carry_out(action: str, id: str, form: Mapping[str, str], caller: Caller, write: UnitOfWork) -> None:
    decisions = {
        "approve": erasures.approve_erasure,
        "hold": erasures.hold_erasure,
        "withdraw": erasures.withdraw_erasure,
        "retry": erasures.retry_erasure,
    }
    justified = {
        "refuse": erasures.refuse_erasure,
        "extend": erasures.extend_erasure,
        "lift": restrictions.lift_restriction,
    }
    if action in decisions:
        decisions[action](id, caller, write)
    elif action in justified:
        justified[action](id, parse(GivenReason, {"reason": form.get("reason", "").strip()}), caller, write)
    else:
        raise NotFound("path_not_found", "This page does not exist.")


@router.get("/{id}/{document}")
def show_document(id: str, document: str, visitor: OfficerDep, context: ContextDep) -> Response:
    """Show a receipt, a refusal or a letter as a printable page."""
    caller = visitor.caller
    if document == "receipt":
        response = erasures.show_receipt(id, caller, context, accept="text/html")
    elif document == "refusal":
        response = erasures.show_refusal(id, caller, context, accept="text/html")
    elif document == "notices":
        response = notices.draft_notices(id, caller, context, accept="text/html")
    elif document in (LetterKind.RESTRICTION, LetterKind.LIFTING):
        response = restrictions.show_restriction_letter(id, LetterKind(document), caller, context, accept="text/html")
    elif document in set(LetterKind):
        response = letters.show_letter(id, LetterKind(document), caller, context, accept="text/html")
    else:
        raise NotFound("path_not_found", "This page does not exist.")
    response.headers["Content-Security-Policy"] = DOCUMENT_POLICY
    return response
