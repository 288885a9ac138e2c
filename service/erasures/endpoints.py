"""Endpoints of erasure requests and receipts."""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Annotated

from fastapi import APIRouter, Header, Path, Query
from sqlalchemy.orm import Session
from starlette.responses import HTMLResponse, JSONResponse, Response

from core.clock import now
from core.erasure import decisions, queries, receipts, requests
from core.erasure.receipt_text import RIGHTS
from core.erasure.replay import replay
from core.erasure.states import RequestDetails
from core.errors import Invalid, NotFound
from core.ledger.batch import subject_hash
from core.tables.erasures import Erasure, ErasureState
from service.context import Context, ContextDep
from service.erasures import documents
from service.erasures.receipt_schema import ReceiptResponse
from service.erasures.schemas import (
    ChainResponse,
    ErasureResponse,
    ErasuresResponse,
    FlawResponse,
    GivenReason,
    NewErasure,
    NewErasures,
    RefusalResponse,
    ReplayedResponse,
    RetriedResponse,
    describe,
    refusal_of,
)
from service.examples.readers import batch_too_large
from service.http.auth import Caller, Eraser
from service.http.body_schemas import Schema
from service.http.pagination import After, Limit, Page, page_of
from service.http.problems import problem_responses
from service.http.routes import AuthenticatedRoute
from service.http.unit_of_work import UnitOfWork, Write

router = APIRouter(prefix="/v1", tags=["Erasure"], route_class=AuthenticatedRoute)

MAX_REQUESTS = 1000
"""Maximum number of erasure requests in one batch."""
PRINTABLE: dict[int | str, Schema] = {
    200: {"content": {"text/html": {"schema": {"type": "string"}}}},
    **problem_responses(404, 409),
}
Id = Annotated[str, Path(description="Id of the request, or a unique prefix of six or more characters.", max_length=36)]


def require_unrestricted(caller: Caller) -> Caller:
    """Reject keys that are limited to certain models: an erasure always covers all models."""
    caller.require_all_models()
    return caller


def to_response(session: Session, erasure: Erasure) -> ErasureResponse:
    parts, events = queries.parts_of(session, erasure), queries.events_of(session, erasure)
    return describe(erasure, parts, events, now())


def receive(
    filings: list[RequestDetails], caller: Caller, context: Context, write: UnitOfWork, session: Session
) -> list[ErasureResponse]:
    """Start erasures. Raises Conflict if receipts of a restored database must be replayed first."""
    receipts.require_all(session, context.store)
    secret = context.settings.secret
    erasures = requests.receive_all(session, filings, secret, caller.key_id, write.request_id)
    return [to_response(session, erasure) for erasure in erasures]


@router.post("/erasures", status_code=202, response_model=ErasureResponse, responses=problem_responses(409))
def request_erasure(body: NewErasure, caller: Eraser, context: ContextDep, write: Write) -> Response:
    """Request the erasure of a subject from all models. No training that starts after this response uses the examples.

    A second request for the same subject returns the open one. The request is due in one month (GDPR Art. 12(3)).
    """
    require_unrestricted(caller)
    filing = filing_of(body, context, ())
    return write(caller.credential, 202, lambda session: receive([filing], caller, context, write, session)[0])


def filing_of(body: NewErasure, context: Context, at: tuple[str | int, ...]) -> RequestDetails:
    """Validate a request; `at` is its location in the body."""
    if not body.subject.isprintable():
        raise Invalid.at((*at, "subject"), "request_invalid", "must be printable text")
    if body.received_at is not None and body.received_at > now():
        raise Invalid.at((*at, "received_at"), "request_invalid", "must not be in the future")
    settings = context.settings
    hashed = subject_hash(body.subject, settings.secret, settings.caseless_subjects)
    return RequestDetails(
        hashed, body.reason, body.received_at, settings.erasure_hold if body.hold is None else body.hold
    )


@router.post("/erasures/batch", status_code=202, response_model=ErasuresResponse, responses=problem_responses(409, 413))
def request_erasures(body: NewErasures, caller: Eraser, context: ContextDep, write: Write) -> Response:
    """Request the erasure of many subjects, all or none. The items of the response are in the same order."""
    require_unrestricted(caller)
    if len(body.requests) > MAX_REQUESTS:
        raise batch_too_large(len(body.requests), MAX_REQUESTS, "requests")
    filings = [filing_of(request, context, ("requests", i)) for i, request in enumerate(body.requests)]

    def begin(session: Session) -> ErasuresResponse:
        return ErasuresResponse(items=receive(filings, caller, context, write, session))

    return write(caller.credential, 202, begin)


@router.get("/erasures", response_model=Page[ErasureResponse], responses=problem_responses())
def list_erasures(
    caller: Eraser,
    context: ContextDep,
    state: Annotated[ErasureState | None, Query(description="List only requests in this state.")] = None,
    overdue: Annotated[bool | None, Query(description="List only open requests past their due date.")] = None,
    limit: Limit = 100,
    after: After = None,
) -> Page[ErasureResponse]:
    """List erasure requests, newest first."""
    require_unrestricted(caller)
    with context.database.read() as session:
        rows = queries.page_erasures(session, state, overdue, after, limit + 1)
        return page_of(rows, limit, lambda row: to_response(session, row), lambda row: row.id)


@router.get("/erasures/{id}", response_model=ErasureResponse, responses=problem_responses(404, 409))
def show_erasure(id: Id, caller: Eraser, context: ContextDep) -> ErasureResponse:
    """Get an erasure request."""
    require_unrestricted(caller)
    with context.database.read() as session:
        return to_response(session, queries.find(session, id))


def apply_decision(
    id: str, caller: Caller, write: UnitOfWork, decision: Callable[..., None], starts_jobs: bool = False
) -> Response:
    """Apply a decision to an erasure request and return the request."""
    require_unrestricted(caller)

    def act(session: Session) -> ErasureResponse:
        erasure = queries.find(session, id)
        if starts_jobs:
            receipts.require_all(session, write.context.store)
        decision(session, erasure, by=caller.key_id)
        return to_response(session, erasure)

    return write(caller.credential, 200, act)


@router.post("/erasures/{id}/retry", response_model=ErasureResponse, responses=problem_responses(404, 409))
def retry_erasure(id: Id, caller: Eraser, write: Write) -> Response:
    """Retry a failed erasure."""
    return apply_decision(id, caller, write, decisions.retry, starts_jobs=True)


@router.post("/erasures/{id}/approve", response_model=ErasureResponse, responses=problem_responses(404, 409))
def approve_erasure(id: Id, caller: Eraser, write: Write) -> Response:
    """Approve a held request and start its erasure."""
    return apply_decision(id, caller, write, decisions.approve, starts_jobs=True)


@router.post("/erasures/{id}/refuse", response_model=ErasureResponse, responses=problem_responses(404, 409))
def refuse_erasure(id: Id, body: GivenReason, caller: Eraser, write: Write) -> Response:
    """Refuse a request, with a reason. Its examples become active again, and the models are adapted to them."""
    return apply_decision(id, caller, write, partial(decisions.refuse, reason=body.reason))


@router.post("/erasures/{id}/extend", response_model=ErasureResponse, responses=problem_responses(404, 409))
def extend_erasure(id: Id, body: GivenReason, caller: Eraser, write: Write) -> Response:
    """Extend the due date by two months, with a reason: once, and within the first month (GDPR Art. 12(3))."""
    return apply_decision(id, caller, write, partial(decisions.extend, reason=body.reason))


@router.post("/erasures/retry", response_model=RetriedResponse, responses=problem_responses(409))
def retry_failed_erasures(caller: Eraser, write: Write) -> Response:
    """Retry all failed erasures."""
    require_unrestricted(caller)

    def act(session: Session) -> RetriedResponse:
        receipts.require_all(session, write.context.store)
        failed = queries.list_failed(session)
        for erasure in failed:
            decisions.retry(session, erasure, caller.key_id)
        return RetriedResponse(retried=[erasure.id for erasure in failed])

    return write(caller.credential, 200, act)


@router.post("/erasures/replay", response_model=ReplayedResponse, responses=problem_responses(409))
def replay_erasures(caller: Eraser, context: ContextDep, write: Write) -> Response:
    """After a restore from a backup, repeat every erasure that has a receipt in the store but not in the database."""
    require_unrestricted(caller)

    def act(session: Session) -> ReplayedResponse:
        count, started = replay(session, context.store, context.settings.secret, caller.key_id, write.request_id)
        return ReplayedResponse(receipts=count, erasures=started)

    return write(caller.credential, 200, act)


@router.get("/erasures/{id}/receipt", response_model=ReceiptResponse, responses=PRINTABLE)
def show_receipt(
    id: Id,
    caller: Eraser,
    context: ContextDep,
    accept: Annotated[str, Header(description="`text/html` returns a printable page.")] = "application/json",
) -> Response:
    """Get the receipt as JSON, or with `Accept: text/html` as a printable page."""
    require_unrestricted(caller)
    with context.database.read() as session:
        body = queries.receipt_of(session, queries.find(session, id)).body
    return respond_printable(body, accept, lambda: documents.render_receipt(body))


@router.get("/erasures/{id}/refusal", response_model=RefusalResponse, responses=PRINTABLE)
def show_refusal(
    id: Id,
    caller: Eraser,
    context: ContextDep,
    accept: Annotated[str, Header(description="`text/html` returns a printable letter.")] = "application/json",
) -> Response:
    """Get the reason of a refusal and the rights of the person (GDPR Art. 12(4)), as JSON or as a printable letter."""
    require_unrestricted(caller)
    with context.database.read() as session:
        erasure = queries.find(session, id)
        if erasure.state is not ErasureState.REFUSED:
            raise NotFound("refusal_not_found", f"The request was not refused. Its state is {erasure.state}.")
        refusal = refusal_of(erasure, queries.parts_of(session, erasure), RIGHTS).model_dump(mode="json")
    return respond_printable(refusal, accept, lambda: documents.render_refusal(refusal))


def respond_printable(body: Mapping[str, object], accept: str, render: Callable[[], str]) -> Response:
    """A page if the Accept header names HTML, otherwise JSON."""
    return HTMLResponse(render()) if "text/html" in accept.lower() else JSONResponse(body)


@router.get("/receipts/verify", response_model=ChainResponse, responses=problem_responses())
def verify_receipts(caller: Eraser, context: ContextDep) -> ChainResponse:
    """Verify the hash chain of the receipts. Reports every receipt that is missing, altered or out of order."""
    require_unrestricted(caller)
    with context.database.read() as session:
        chain = receipts.chain(session)
        problems = receipts.verify(session, context.store)
    last = str(chain[-1]["sha256"]) if chain else None
    flaws = [FlawResponse(number=flaw.number, problem=flaw.problem) for flaw in problems]
    return ChainResponse(valid=not flaws, receipts=len(chain), last=last, flaws=flaws)
