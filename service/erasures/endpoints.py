"""Endpoints of erasure requests."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, replace
from functools import partial
from typing import Annotated

from fastapi import APIRouter, Header, Path, Query
from sqlalchemy.orm import Session
from starlette.responses import HTMLResponse, JSONResponse, Response

from core.audit.entries import About
from core.clock import now
from core.erasure import decisions, identifiers, queries, receipts, requests
from core.erasure.receipt_text import RIGHTS
from core.erasure.request_details import RequestDetails
from core.erasure.spellings import find_similar
from core.errors import Conflict, Invalid, NotFound
from core.ledger.subject_hashes import subject_hash
from core.lifecycle.replay_after_restore import replay
from core.register import log
from core.settings import Settings
from core.tables.audit import Action
from core.tables.erasures import Erasure, ErasureState
from service.context import Context, ContextDep
from service.erasures import printable_receipts
from service.erasures.controller import sender_of
from service.erasures.receipt_schema import ReceiptResponse, SpeltReceiptResponse, SpeltSubject
from service.erasures.schemas import (
    ErasureResponse,
    ErasuresResponse,
    GivenReason,
    NewErasure,
    NewErasures,
    RefusalResponse,
    ReplayedResponse,
    RetriedResponse,
    SpellingResponse,
    SpeltSubjects,
    describe,
    refusal_of,
)
from service.examples.readers import batch_too_large
from service.http.auth import Approver, Caller, Eraser
from service.http.body_schemas import Schema
from service.http.pagination import After, Limit, Page, page_of
from service.http.problems import problem_responses
from service.http.request_audit import AuditorDep
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
    return to_responses(session, [erasure])[0]


def to_responses(session: Session, erasures: Sequence[Erasure]) -> list[ErasureResponse]:
    """`to_response` of many erasures, with three queries."""
    (parts, records), at = queries.details_of(session, erasures), now()
    tokens = identifiers.tokens_by_erasure(session, erasures)
    return [describe(one, parts[one.id], records[one.id], tokens[one.id], at) for one in erasures]


def receive(
    bodies: Sequence[NewErasure],
    filings: Sequence[RequestDetails],
    caller: Caller,
    context: Context,
    write: UnitOfWork,
    session: Session,
) -> list[ErasureResponse]:
    """Start erasures, and acknowledge them with leaves of the register."""
    found = [find_similar(session, body.identifiers, context.settings) for body in bodies]
    filings = [replace(f, near_matches=len(similar)) for f, (_, similar) in zip(filings, found, strict=True)]
    erasures = requests.receive_all(session, filings, context.settings.secret, caller.key_id, write.request_id)
    log.write_pending(session)
    proofs = log.acknowledge_filings(session, [erasure.id for erasure in erasures])
    responses = to_responses(session, erasures)
    for response, (searched, similar) in zip(responses, found, strict=True):
        response.acknowledgement = proofs[response.id]
        response.searched = [SpellingResponse(**asdict(one)) for one in searched]
        response.near_matches = [SpellingResponse(**asdict(one)) for one in similar]
    return responses


@router.post("/erasures", status_code=202, response_model=ErasureResponse, responses=problem_responses(409))
def request_erasure(body: NewErasure, caller: Eraser, context: ContextDep, write: Write) -> Response:
    """Request the erasure of a person from all models. No training that starts after this response uses the examples.

    A second request for the same person returns the open one. If no example has one of the identifiers, the request
    is `unmatched` and waits for a decision. It is due in one month (GDPR Art. 12(3)). The `acknowledgement` proves that
    the signed register contains the request.
    """
    require_unrestricted(caller)
    filing = filing_of(body, context, ())

    def begin(session: Session) -> ErasureResponse:
        return receive([body], [filing], caller, context, write, session)[0]

    return write(caller, 202, begin, Action.ERASURE_REQUESTED, lambda erasure: [About(erasure_id=erasure.id)])


def filing_of(body: NewErasure, context: Context, at: tuple[str | int, ...]) -> RequestDetails:
    """Validate a request; `at` is its location in the body."""
    for identifier in body.identifiers:
        if not identifier.isprintable():
            field = "subject" if identifier == body.subject else "subjects"
            raise Invalid.at((*at, field), "request_invalid", "must be printable text")
    if body.received_at is not None and body.received_at > now():
        raise Invalid.at((*at, "received_at"), "request_invalid", "must not be in the future")
    settings = context.settings
    first, *rest = (subject_hash(s, settings.secret, settings.caseless_subjects) for s in body.identifiers)
    if body.hold is False and settings.erasure_approval == "second":
        message = "cannot be false: AMEND_ERASURE_APPROVAL requires that a second person approves each request"
        raise Invalid.at((*at, "hold"), "approval_required", message)
    hold = settings.erasure_hold if body.hold is None else body.hold
    return RequestDetails(first, body.reason, body.received_at, hold, body.reference, tuple(rest))


@router.post("/erasures/batch", status_code=202, response_model=ErasuresResponse, responses=problem_responses(409, 413))
def request_erasures(body: NewErasures, caller: Eraser, context: ContextDep, write: Write) -> Response:
    """Request the erasure of many subjects, all or none. The items of the response are in the same order."""
    require_unrestricted(caller)
    if len(body.requests) > MAX_REQUESTS:
        raise batch_too_large(len(body.requests), MAX_REQUESTS, "requests")
    filings = [filing_of(request, context, ("requests", i)) for i, request in enumerate(body.requests)]

    def begin(session: Session) -> ErasuresResponse:
        return ErasuresResponse(items=receive(body.requests, filings, caller, context, write, session))

    def about(filed: ErasuresResponse) -> list[About]:
        return [About(erasure_id=id) for id in dict.fromkeys(erasure.id for erasure in filed.items)]

    return write(caller, 202, begin, Action.ERASURE_REQUESTED, about)


@router.get("/erasures", response_model=Page[ErasureResponse], responses=problem_responses())
def list_erasures(
    caller: Approver,
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
        return page_of(to_responses(session, rows), limit, lambda row: row, lambda row: row.id)


@router.get("/erasures/{id}", response_model=ErasureResponse, responses=problem_responses(404, 409))
def show_erasure(id: Id, caller: Approver, context: ContextDep) -> ErasureResponse:
    """Get an erasure request."""
    require_unrestricted(caller)
    with context.database.read() as session:
        return to_response(session, queries.find(session, id))


def apply_decision(
    id: str, caller: Caller, write: UnitOfWork, decision: Callable[..., None], action: Action
) -> Response:
    """Apply a decision to an erasure request and return the request."""
    require_unrestricted(caller)

    def act(session: Session) -> ErasureResponse:
        erasure = queries.find(session, id)
        decision(session, erasure, by=caller.key_id)
        log.write_pending(session)
        return to_response(session, erasure)

    return write(caller, 200, act, action, lambda erasure: [About(erasure_id=erasure.id)])


@router.post("/erasures/{id}/retry", response_model=ErasureResponse, responses=problem_responses(404, 409))
def retry_erasure(id: Id, caller: Eraser, write: Write) -> Response:
    """Retry a failed erasure."""
    return apply_decision(id, caller, write, decisions.retry, Action.ERASURE_RETRIED)


@router.post("/erasures/{id}/approve", response_model=ErasureResponse, responses=problem_responses(404, 409))
def approve_erasure(id: Id, caller: Approver, write: Write) -> Response:
    """Approve a held request and start its erasure, or complete a request for which no example was found."""
    return apply_decision(id, caller, write, decisions.approve, Action.ERASURE_APPROVED)


@router.post("/erasures/{id}/hold", response_model=ErasureResponse, responses=problem_responses(404, 409))
def hold_erasure(id: Id, caller: Approver, write: Write) -> Response:
    """Hold an open request until it is approved, refused or withdrawn, as long as nothing has been deleted."""
    return apply_decision(id, caller, write, decisions.hold, Action.ERASURE_HELD)


@router.post("/erasures/{id}/withdraw", response_model=ErasureResponse, responses=problem_responses(404, 409))
def withdraw_erasure(id: Id, caller: Eraser, write: Write) -> Response:
    """End a request because the person has withdrawn it. Its examples become active again."""
    return apply_decision(id, caller, write, decisions.withdraw, Action.ERASURE_WITHDRAWN)


@router.post("/erasures/{id}/refuse", response_model=ErasureResponse, responses=problem_responses(404, 409))
def refuse_erasure(id: Id, body: GivenReason, caller: Approver, write: Write) -> Response:
    """Refuse a request, with a reason. Its examples become active again, and the models are adapted to them."""
    return apply_decision(id, caller, write, partial(decisions.refuse, reason=body.reason), Action.ERASURE_REFUSED)


@router.post("/erasures/{id}/extend", response_model=ErasureResponse, responses=problem_responses(404, 409))
def extend_erasure(id: Id, body: GivenReason, caller: Eraser, write: Write) -> Response:
    """Extend the due date by two months, with a reason: once, and within the first month (GDPR Art. 12(3))."""
    return apply_decision(id, caller, write, partial(decisions.extend, reason=body.reason), Action.ERASURE_EXTENDED)


@router.post("/erasures/retry", response_model=RetriedResponse, responses=problem_responses(409))
def retry_failed_erasures(caller: Eraser, write: Write) -> Response:
    """Retry all failed erasures."""
    require_unrestricted(caller)

    def act(session: Session) -> RetriedResponse:
        failed = queries.list_failed(session)
        for erasure in failed:
            decisions.retry(session, erasure, caller.key_id)
        return RetriedResponse(retried=[erasure.id for erasure in failed])

    def about(response: RetriedResponse) -> list[About]:
        return [About(erasure_id=id) for id in response.retried]

    return write(caller, 200, act, Action.ERASURE_RETRIED, about)


@router.post("/erasures/replay", response_model=ReplayedResponse, responses=problem_responses(409))
def replay_erasures(caller: Eraser, context: ContextDep, write: Write) -> Response:
    """After a restore from a backup, repeat what the store has recorded since: requests, decisions, erasures, removals,
    corrections and deletions of models. Until then, no job runs.
    """
    require_unrestricted(caller)

    def act(session: Session) -> ReplayedResponse:
        done = replay(session, context.store, context.settings.secret, caller.key_id, write.request_id)
        return ReplayedResponse.model_validate(vars(done))

    return write(caller, 200, act, Action.ERASURES_REPLAYED)


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
        body = receipts.body_of(queries.receipt_of(session, queries.find(session, id)))
    return respond_printable(body, accept, lambda: printable_receipts.render_receipt(body))


@router.post("/erasures/{id}/receipt", response_model=SpeltReceiptResponse, responses=PRINTABLE)
def spell_receipt(
    id: Id,
    body: SpeltSubjects,
    caller: Eraser,
    context: ContextDep,
    auditor: AuditorDep,
    accept: Annotated[str, Header(description="`text/html` returns a printable page.")] = "application/json",
) -> Response:
    """Get the receipt together with the identifiers that were searched for, exactly as spelt, for the person.

    Amend stores only hashes of identifiers: send their spelling, which is compared with the hashes on the receipt.
    """
    require_unrestricted(caller)
    settings = context.settings
    with context.database.read() as session:
        receipt = receipts.body_of(queries.receipt_of(session, queries.find(session, id)))
    auditor.record_read(caller, Action.SUBJECT_LOOKED_UP, About(erasure_id=receipt["erasure"]))
    tokens = {receipt["subject_token"], *receipt.get("alias_tokens", [])}
    spelt = [SpeltSubject(subject=s, token=hash_token(s, settings)) for s in dict.fromkeys(body.subjects)]
    for number, one in enumerate(spelt, 1):
        if one.token not in tokens:
            message = f"The request did not search for identifier number {number}. Spell it as in the request."
            raise Conflict("subject_not_searched", message)
    answer = {**receipt, "searched": [one.model_dump() for one in spelt]}
    return respond_printable(
        answer, accept, lambda: printable_receipts.render_receipt(receipt, [one.subject for one in spelt])
    )


def hash_token(subject: str, settings: Settings) -> str:
    """The token of an identifier on receipts."""
    return identifiers.token_of(subject_hash(subject, settings.secret, settings.caseless_subjects), settings.secret)


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
        reference, sender = queries.reference_in(log.records_of(session, erasure.id)), sender_of(context.settings)
    return respond_printable(refusal, accept, lambda: printable_receipts.render_refusal(refusal, reference, sender))


def respond_printable(body: Mapping[str, object], accept: str, render: Callable[[], str]) -> Response:
    """A page if the Accept header names HTML, otherwise JSON."""
    return HTMLResponse(render()) if "text/html" in accept.lower() else JSONResponse(body)
