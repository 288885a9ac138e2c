"""Endpoints of erasures and receipts."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Annotated

from fastapi import APIRouter, Header, Path, Query
from sqlalchemy.orm import Session
from starlette.responses import HTMLResponse, JSONResponse, Response

from core.database import now
from core.erasure import decisions, queries, receipts, requests
from core.erasure.receipt_text import RIGHTS
from core.erasure.replay import replay
from core.erasure.states import RequestDetails
from core.errors import Invalid, NotFound, TooLarge
from core.ledger.batch import subject_hash
from core.tables.erasures import Erasure, ErasureState
from service.context import Context, ContextDep
from service.erasures import page
from service.erasures.receipt_schema import ReceiptAnswer
from service.erasures.schemas import (
    ChainAnswer,
    ErasureAnswer,
    ErasuresAnswer,
    FlawAnswer,
    GivenReason,
    NewErasure,
    NewErasures,
    RefusalAnswer,
    ReplayedAnswer,
    RetriedAnswer,
    describe,
    refusal_of,
)
from service.http.auth import AuthenticatedRoute, Caller, Eraser
from service.http.pages import After, Limit, Page, page_of
from service.http.problems import problem_responses
from service.http.unit_of_work import UnitOfWork, Write

router = APIRouter(prefix="/v1", tags=["Erasure"], route_class=AuthenticatedRoute)

MAX_REQUESTS = 1000
"""Erasures that can be filed in one request."""

Id = Annotated[str, Path(description="The erasure's id, or six or more characters that it begins with.", max_length=36)]


def require_unrestricted(caller: Caller) -> Caller:
    """A person is erased everywhere or not at all: a key for some models cannot ask for that."""
    caller.require_all_models()
    return caller


def answer(session: Session, erasure: Erasure) -> ErasureAnswer:
    parts, events = queries.parts_of(session, erasure), queries.events_of(session, erasure)
    return describe(erasure, parts, events, now())


def receive(
    filings: list[RequestDetails], caller: Caller, context: Context, write: UnitOfWork, session: Session
) -> list[ErasureAnswer]:
    """Begin erasures, unless the database was restored and has others to carry out first."""
    receipts.require_all(session, context.store)
    secret = context.settings.secret
    erasures = requests.receive_all(session, filings, secret, caller.key_id, write.request_id)
    return [answer(session, erasure) for erasure in erasures]


@router.post("/erasures", status_code=202, response_model=ErasureAnswer, responses=problem_responses(409))
def ask_for_erasure(body: NewErasure, caller: Eraser, context: ContextDep, write: Write) -> Response:
    """Have a person forgotten by all models. From this answer on nothing new is learnt from their examples.

    A second request for the same person joins the one that is open. Due in a month (GDPR Art. 12(3)).
    """
    require_unrestricted(caller)
    filing = filing_of(body, context, ())
    return write(caller.credential, 202, lambda session: receive([filing], caller, context, write, session)[0])


def filing_of(body: NewErasure, context: Context, at: tuple[str | int, ...]) -> RequestDetails:
    """A request as it is filed; Invalid, at its place in the body, if it cannot be."""
    if not body.subject.isprintable():
        raise Invalid.at((*at, "subject"), "request_invalid", "must be printable text")
    if body.received_at is not None and body.received_at > now():
        raise Invalid.at((*at, "received_at"), "request_invalid", "must not lie in the future")
    settings = context.settings
    hashed = subject_hash(body.subject, settings.secret, settings.caseless_subjects)
    return RequestDetails(
        hashed, body.reason, body.received_at, settings.erasure_hold if body.hold is None else body.hold
    )


@router.post("/erasures/batch", status_code=202, response_model=ErasuresAnswer, responses=problem_responses(409, 413))
def ask_for_erasures(body: NewErasures, caller: Eraser, context: ContextDep, write: Write) -> Response:
    """Have many people forgotten: a request for each, all of them or none. The answer is in the same order."""
    require_unrestricted(caller)
    if len(body.requests) > MAX_REQUESTS:
        raise TooLarge(
            "batch_too_large",
            f"{len(body.requests)} requests; {MAX_REQUESTS} are allowed at once. Send the rest after.",
        )
    filings = [filing_of(request, context, ("requests", i)) for i, request in enumerate(body.requests)]

    def begin(session: Session) -> ErasuresAnswer:
        return ErasuresAnswer(items=receive(filings, caller, context, write, session))

    return write(caller.credential, 202, begin)


@router.get("/erasures", response_model=Page[ErasureAnswer], responses=problem_responses())
def list_erasures(
    caller: Eraser,
    context: ContextDep,
    state: ErasureState | None = None,
    overdue: Annotated[bool | None, Query(description="Only those that are past their due date and not done.")] = None,
    limit: Limit = 100,
    after: After = None,
) -> Page[ErasureAnswer]:
    """Erasures, the newest first."""
    require_unrestricted(caller)
    with context.database.read() as session:
        rows = queries.page_erasures(session, state, overdue, after, limit + 1)
        return page_of(rows, limit, lambda row: answer(session, row), lambda row: row.id)


@router.get("/erasures/{id}", response_model=ErasureAnswer, responses=problem_responses(404, 409))
def show_erasure(id: Id, caller: Eraser, context: ContextDep) -> ErasureAnswer:
    """One erasure."""
    require_unrestricted(caller)
    with context.database.read() as session:
        return answer(session, queries.find(session, id))


def decide(
    id: str, caller: Caller, write: UnitOfWork, decision: Callable[..., None], has_to_work: bool = False
) -> Response:
    """Carry out a decision about an erasure, and answer how it stands then."""
    require_unrestricted(caller)

    def act(session: Session) -> ErasureAnswer:
        erasure = queries.find(session, id)
        if has_to_work:
            receipts.require_all(session, write.context.store)
        decision(session, erasure, by=caller.key_id)
        return answer(session, erasure)

    return write(caller.credential, 200, act)


@router.post("/erasures/{id}/retry", response_model=ErasureAnswer, responses=problem_responses(404, 409))
def retry_erasure(id: Id, caller: Eraser, write: Write) -> Response:
    """Try again what failed."""
    return decide(id, caller, write, decisions.retry, has_to_work=True)


@router.post("/erasures/{id}/approve", response_model=ErasureAnswer, responses=problem_responses(404, 409))
def approve_erasure(id: Id, caller: Eraser, write: Write) -> Response:
    """Have a request that was held carried out."""
    return decide(id, caller, write, decisions.approve, has_to_work=True)


@router.post("/erasures/{id}/refuse", response_model=ErasureAnswer, responses=problem_responses(404, 409))
def refuse_erasure(id: Id, body: GivenReason, caller: Eraser, write: Write) -> Response:
    """Refuse a request, with a reason. What it took out of force comes back, and the models follow."""
    return decide(id, caller, write, partial(decisions.refuse, reason=body.reason))


@router.post("/erasures/{id}/extend", response_model=ErasureAnswer, responses=problem_responses(404, 409))
def extend_erasure(id: Id, body: GivenReason, caller: Eraser, write: Write) -> Response:
    """Move the due date by two months, once and within the first month, with a reason (GDPR Art. 12(3))."""
    return decide(id, caller, write, partial(decisions.extend, reason=body.reason))


@router.post("/erasures/retry", response_model=RetriedAnswer, responses=problem_responses(409))
def retry_failed_erasures(caller: Eraser, write: Write) -> Response:
    """Try again all erasures that failed."""
    require_unrestricted(caller)

    def act(session: Session) -> RetriedAnswer:
        receipts.require_all(session, write.context.store)
        failed = queries.list_failed(session)
        for erasure in failed:
            decisions.retry(session, erasure, caller.key_id)
        return RetriedAnswer(retried=[erasure.id for erasure in failed])

    return write(caller.credential, 200, act)


@router.post("/erasures/replay", response_model=ReplayedAnswer, responses=problem_responses(409))
def replay_erasures(caller: Eraser, context: ContextDep, write: Write) -> Response:
    """After a restore from a backup: carry out again every erasure that the receipts know and the database does not."""
    require_unrestricted(caller)

    def act(session: Session) -> ReplayedAnswer:
        count, begun = replay(session, context.store, context.settings.secret, caller.key_id, write.request_id)
        return ReplayedAnswer(receipts=count, erasures=begun)

    return write(caller.credential, 200, act)


@router.get(
    "/erasures/{id}/receipt",
    response_model=ReceiptAnswer,
    responses={200: {"content": {"text/html": {"schema": {"type": "string"}}}}, **problem_responses(404, 409)},
)
def show_receipt(
    id: Id,
    caller: Eraser,
    context: ContextDep,
    accept: Annotated[str, Header(description="text/html: a page to print.")] = "application/json",
) -> Response:
    """The receipt: JSON, or with `Accept: text/html` a page that a person can read and print."""
    require_unrestricted(caller)
    with context.database.read() as session:
        body = queries.receipt_of(session, queries.find(session, id)).body
    return answer_printable(body, accept, lambda: page.render_receipt(body))


@router.get(
    "/erasures/{id}/refusal",
    response_model=RefusalAnswer,
    responses={200: {"content": {"text/html": {"schema": {"type": "string"}}}}, **problem_responses(404, 409)},
)
def show_refusal(
    id: Id,
    caller: Eraser,
    context: ContextDep,
    accept: Annotated[str, Header(description="text/html: a letter to print.")] = "application/json",
) -> Response:
    """Why a request was refused, and what the person can do (GDPR Art. 12(4)): JSON, or a letter to print."""
    require_unrestricted(caller)
    with context.database.read() as session:
        erasure = queries.find(session, id)
        if erasure.state is not ErasureState.REFUSED:
            raise NotFound("refusal_not_found", f"The request was not refused: it is {erasure.state}.")
        refusal = refusal_of(erasure, queries.parts_of(session, erasure), RIGHTS).model_dump(mode="json")
    return answer_printable(refusal, accept, lambda: page.render_refusal(refusal))


def answer_printable(body: Mapping[str, object], accept: str, render: Callable[[], str]) -> Response:
    """JSON, or a page for who asks for one."""
    return HTMLResponse(render()) if "text/html" in accept.lower() else JSONResponse(body)


@router.get("/receipts/verify", response_model=ChainAnswer, responses=problem_responses())
def verify_receipts(caller: Eraser, context: ContextDep) -> ChainAnswer:
    """Walk the chain of receipts: one that is missing, altered or out of place is found."""
    require_unrestricted(caller)
    with context.database.read() as session:
        chain = receipts.chain(session)
        found = receipts.verify(session, context.store)
    last = str(chain[-1]["sha256"]) if chain else None
    flaws = [FlawAnswer(number=flaw.number, problem=flaw.problem) for flaw in found]
    return ChainAnswer(valid=not flaws, receipts=len(chain), last=last, flaws=flaws)
