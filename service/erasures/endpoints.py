"""Endpoints of erasures and receipts."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any

from fastapi import APIRouter, Header, Path, Query
from sqlalchemy import select, tuple_
from sqlalchemy.orm import Session
from starlette.responses import HTMLResponse, JSONResponse, Response

from core.database import now
from core.erasure import decisions, receipts, replaying, requests, trail
from core.erasure.requests import Filing
from core.errors import Invalid, NotFound, TooLarge
from core.ledger.batch import subject_hash
from core.tables.erasures import PENDING, Erasure, ErasureState, Receipt
from service.context import Context, ContextDep
from service.erasures import page
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
    described,
    refusal_of,
)
from service.http.auth import AuthenticatedRoute, Caller, Eraser
from service.http.pages import After, Limit, Page, page_of
from service.http.problems import documented
from service.http.unit_of_work import UnitOfWork, Write

router = APIRouter(prefix="/v1", tags=["Erasure"], route_class=AuthenticatedRoute)

MOST = 1000
"""Requests that can be filed at once."""

Id = Annotated[str, Path(description="The erasure's id.", max_length=36)]


def require_unrestricted(caller: Caller) -> Caller:
    """A person is erased everywhere or not at all: a key for some models cannot ask for that."""
    caller.require_all_models()
    return caller


def answered(session: Session, erasure: Erasure) -> ErasureAnswer:
    return described(erasure, requests.parts_of(session, erasure), trail.events_of(session, erasure), now())


@router.post("/erasures", status_code=202, response_model=ErasureAnswer, responses=documented(409))
def ask_for_erasure(body: NewErasure, caller: Eraser, context: ContextDep, write: Write) -> Response:
    """Have a person forgotten by all models. From this answer on nothing new is learnt from their examples.

    A second request for the same person joins the one that is open. Due in a month (GDPR Art. 12(3)).
    """
    require_unrestricted(caller)
    filing = filing_of(body, context, ())

    def begin(session: Session) -> ErasureAnswer:
        receipts.require_all(session, context.store)
        secret = context.settings.secret
        [erasure] = requests.receive_all(session, [filing], secret, caller.key_id, write.request_id)
        return answered(session, erasure)

    return write(caller.credential, 202, begin)


def filing_of(body: NewErasure, context: Context, at: tuple[str | int, ...]) -> Filing:
    """A request as it is filed; Invalid, at its place in the body, if it cannot be."""
    if not body.subject.isprintable():
        raise Invalid.at((*at, "subject"), "request_invalid", "must be printable text")
    if body.received_at is not None and body.received_at > now():
        raise Invalid.at((*at, "received_at"), "request_invalid", "must not lie in the future")
    settings = context.settings
    hashed = subject_hash(body.subject, settings.secret, settings.caseless_subjects)
    return Filing(hashed, body.reason, body.received_at, settings.erasure_hold if body.hold is None else body.hold)


@router.post("/erasures/batch", status_code=202, response_model=ErasuresAnswer, responses=documented(409, 413))
def ask_for_erasures(body: NewErasures, caller: Eraser, context: ContextDep, write: Write) -> Response:
    """Have many people forgotten: a request for each, all of them or none. The answer is in the same order."""
    require_unrestricted(caller)
    if len(body.requests) > MOST:
        raise TooLarge(
            "batch_too_large", f"{len(body.requests)} requests; {MOST} are allowed at once. Send the rest after."
        )
    filings = [filing_of(request, context, ("requests", i)) for i, request in enumerate(body.requests)]

    def begin(session: Session) -> ErasuresAnswer:
        receipts.require_all(session, context.store)
        secret = context.settings.secret
        made = requests.receive_all(session, filings, secret, caller.key_id, write.request_id)
        return ErasuresAnswer(items=[answered(session, erasure) for erasure in made])

    return write(caller.credential, 202, begin)


@router.get("/erasures", response_model=Page[ErasureAnswer], responses=documented())
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
    query = select(Erasure)
    if state is not None:
        query = query.where(Erasure.state == state)
    if overdue is not None:
        late = Erasure.state.in_(PENDING) & (Erasure.due_at < now())
        query = query.where(late if overdue else ~late)
    with context.database.read() as session:
        if after is not None:
            last = session.get(Erasure, after) if after.isprintable() else None
            if last is None:
                raise Invalid.at(("query", "after"), "cursor_invalid", "is not a cursor of this list")
            query = query.where(tuple_(Erasure.created_at, Erasure.id) < tuple_(last.created_at, last.id))
        rows = session.scalars(query.order_by(Erasure.created_at.desc(), Erasure.id.desc()).limit(limit + 1)).all()
        return page_of(rows, limit, lambda row: answered(session, row), lambda row: row.id)


@router.get("/erasures/{id}", response_model=ErasureAnswer, responses=documented(404))
def show_erasure(id: Id, caller: Eraser, context: ContextDep) -> ErasureAnswer:
    """One erasure."""
    require_unrestricted(caller)
    with context.database.read() as session:
        return answered(session, requests.find(session, id))


def changed(id: str, caller: Caller, write: UnitOfWork, change: Any) -> Response:
    """Carry out a change of an erasure, and answer how it stands then."""
    require_unrestricted(caller)

    def act(session: Session) -> ErasureAnswer:
        erasure = requests.find(session, id)
        change(session, erasure)
        return answered(session, erasure)

    return write(caller.credential, 200, act)


@router.post("/erasures/{id}/retry", response_model=ErasureAnswer, responses=documented(404, 409))
def retry_erasure(id: Id, caller: Eraser, write: Write) -> Response:
    """Try again what failed."""

    def retry(session: Session, erasure: Erasure) -> None:
        receipts.require_all(session, write.context.store)
        requests.retry(session, erasure, caller.key_id)

    return changed(id, caller, write, retry)


@router.post("/erasures/{id}/approve", response_model=ErasureAnswer, responses=documented(404, 409))
def approve_erasure(id: Id, caller: Eraser, write: Write) -> Response:
    """Have a request that was held carried out."""

    def approve(session: Session, erasure: Erasure) -> None:
        receipts.require_all(session, write.context.store)
        decisions.approve(session, erasure, caller.key_id)

    return changed(id, caller, write, approve)


@router.post("/erasures/{id}/refuse", response_model=ErasureAnswer, responses=documented(404, 409))
def refuse_erasure(id: Id, body: GivenReason, caller: Eraser, write: Write) -> Response:
    """Refuse a request, with a reason. What it took out of force comes back, and the models follow."""
    by = caller.key_id
    return changed(id, caller, write, lambda session, erasure: decisions.refuse(session, erasure, body.reason, by))


@router.post("/erasures/{id}/extend", response_model=ErasureAnswer, responses=documented(404, 409))
def extend_erasure(id: Id, body: GivenReason, caller: Eraser, write: Write) -> Response:
    """Move the due date by two months, once and within the first month, with a reason (GDPR Art. 12(3))."""
    by = caller.key_id
    return changed(id, caller, write, lambda session, erasure: decisions.extend(session, erasure, body.reason, by))


@router.post("/erasures/retry", response_model=RetriedAnswer, responses=documented(409))
def retry_failed_erasures(caller: Eraser, write: Write) -> Response:
    """Try again all erasures that failed."""
    require_unrestricted(caller)

    def act(session: Session) -> RetriedAnswer:
        receipts.require_all(session, write.context.store)
        failed = session.scalars(select(Erasure).where(Erasure.state == ErasureState.FAILED).order_by(Erasure.id)).all()
        for erasure in failed:
            requests.retry(session, erasure, caller.key_id)
        return RetriedAnswer(retried=[erasure.id for erasure in failed])

    return write(caller.credential, 200, act)


@router.post("/erasures/replay", response_model=ReplayedAnswer, responses=documented(409))
def replay_erasures(caller: Eraser, context: ContextDep, write: Write) -> Response:
    """After a restore from a backup: carry out again every erasure that the receipts know and the database does not."""
    require_unrestricted(caller)

    def act(session: Session) -> ReplayedAnswer:
        count, begun = replaying.replay(
            session, context.store, context.settings.secret, caller.key_id, write.request_id
        )
        return ReplayedAnswer(receipts=count, erasures=begun)

    return write(caller.credential, 200, act)


@router.get(
    "/erasures/{id}/receipt",
    response_model=dict[str, Any],
    responses={200: {"content": {"text/html": {"schema": {"type": "string"}}}}, **documented(404)},
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
        erasure = requests.find(session, id)
        receipt = session.get(Receipt, erasure.receipt) if erasure.receipt else None
        if receipt is None:
            refused = "It was refused: there will be no receipt."
            open_ = "There is no receipt yet: the erasure is not completed."
            raise NotFound("receipt_not_found", refused if erasure.state is ErasureState.REFUSED else open_)
        body = receipt.body
    return printable(body, accept, page.of)


@router.get(
    "/erasures/{id}/refusal",
    response_model=RefusalAnswer,
    responses={200: {"content": {"text/html": {"schema": {"type": "string"}}}}, **documented(404)},
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
        erasure = requests.find(session, id)
        if erasure.state is not ErasureState.REFUSED:
            raise NotFound("refusal_not_found", f"The request was not refused: it is {erasure.state}.")
        told = refusal_of(erasure, requests.parts_of(session, erasure), page.RIGHTS)
    return printable(told.model_dump(mode="json"), accept, page.letter)


def printable(body: dict[str, Any], accept: str, page_of: Callable[[dict[str, Any]], str]) -> Response:
    """JSON, or a page for who asks for one."""
    return HTMLResponse(page_of(body)) if "text/html" in accept.lower() else JSONResponse(body)


@router.get("/receipts/verify", response_model=ChainAnswer, responses=documented())
def verify_receipts(caller: Eraser, context: ContextDep) -> ChainAnswer:
    """Walk the chain of receipts: one that is missing, altered or out of place is found."""
    require_unrestricted(caller)
    with context.database.read() as session:
        chain = receipts.chain(session)
        found = receipts.verify(session, context.store)
    last = str(chain[-1]["sha256"]) if chain else None
    flaws = [FlawAnswer(number=flaw.number, problem=flaw.problem) for flaw in found]
    return ChainAnswer(valid=not flaws, receipts=len(chain), last=last, flaws=flaws)
