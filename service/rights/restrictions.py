"""Restriction of processing (GDPR Art. 18): a person's examples are kept but not used until it is lifted."""

from collections.abc import Sequence
from datetime import datetime
from typing import Annotated, Literal

from fastapi import APIRouter, Path, Query
from pydantic import Field
from sqlalchemy.orm import Session
from starlette.responses import Response

from core.audit.entries import About
from core.clock import now
from core.erasure import decisions, letters, queries, requests
from core.erasure.letters import LetterKind
from core.erasure.request_details import RequestDetails
from core.errors import Invalid
from core.register import log
from core.tables.audit import Action
from core.tables.erasures import Erasure, ErasureState
from service.context import ContextDep
from service.erasures.endpoints import PRINTABLE, require_unrestricted
from service.erasures.letters import Accept, LetterResponse, read_circumstances, respond
from service.erasures.schemas import EventResponse, GivenReason, Reason, ReceivedAt, Reference, read_trail
from service.http.auth import Eraser
from service.http.pagination import After, Limit, Page, page_of
from service.http.problems import problem_responses
from service.http.response_model import ResponseModel
from service.http.routes import AuthenticatedRoute
from service.http.unit_of_work import Write
from service.subjects import SubjectQuery, hash_subject

router = APIRouter(prefix="/v1/restrictions", tags=["Erasure"], route_class=AuthenticatedRoute)

Id = Annotated[
    str, Path(description="Id of the restriction, or a unique prefix of six or more characters.", max_length=36)
]


class NewRestriction(SubjectQuery):
    """A request to restrict the processing of one person's data."""

    reason: Reason | None = Field(None, description="A note for your own records; deleted when it is lifted.")
    received_at: ReceivedAt = None
    reference: Reference = None


class RestrictedModelResponse(ResponseModel):
    """The restricted examples of one model."""

    model: str
    examples: int


class RestrictionResponse(ResponseModel):
    """A restriction of the processing of a person's data."""

    id: str
    state: Literal["restricted", "lifted"]
    received_at: datetime
    restricted_at: datetime
    lifted_at: datetime | None
    reason: str | None
    """The reason given with the request; null once the restriction is lifted."""
    reference: str | None
    """Your own number for the request; null after the retention period of the register."""
    trail: list[EventResponse]
    """Actions on the request, in order, as in the register. Records that have expired are left out."""
    models: list[RestrictedModelResponse]


def describe_all(session: Session, restrictions: Sequence[Erasure]) -> list[RestrictionResponse]:
    """The responses for several restrictions, with two queries."""
    parts, records = queries.details_of(session, restrictions)
    return [
        RestrictionResponse(
            id=one.id,
            state=one.state.value,
            received_at=one.received_at,
            restricted_at=one.created_at,
            lifted_at=one.completed_at,
            reason=one.reason,
            reference=queries.reference_in(records[one.id]),
            trail=read_trail(records[one.id]),
            models=[RestrictedModelResponse(model=part.model, examples=part.examples) for part in parts[one.id]],
        )
        for one in restrictions
    ]


def about(restriction: RestrictionResponse) -> list[About]:
    return [About(erasure_id=restriction.id)]


@router.post("", status_code=201, response_model=RestrictionResponse, responses=problem_responses(409))
def restrict_subject(body: NewRestriction, caller: Eraser, context: ContextDep, write: Write) -> Response:
    """Restrict the processing of a subject's data in all models, and adapt the models without it.

    The examples are kept, and return when the restriction is lifted. A second request returns the restriction that is
    in effect. New examples of the subject are restricted as well.
    """
    require_unrestricted(caller)
    if body.received_at is not None and body.received_at > now():
        raise Invalid.at(("received_at",), "request_invalid", "must not be in the future")
    filing = RequestDetails(hash_subject(body, context), body.reason, body.received_at, False, body.reference)

    def begin(session: Session) -> RestrictionResponse:
        secret = context.settings.secret
        restriction = requests.restrict_processing(session, filing, secret, caller.key_id, write.request_id)
        log.write_pending(session)
        return describe_all(session, [restriction])[0]

    return write(caller, 201, begin, Action.SUBJECT_RESTRICTED, about)


@router.get("", response_model=Page[RestrictionResponse], responses=problem_responses())
def list_restrictions(
    caller: Eraser,
    context: ContextDep,
    state: Annotated[Literal["restricted", "lifted"], Query(description="State of the restrictions.")] = "restricted",
    limit: Limit = 100,
    after: After = None,
) -> Page[RestrictionResponse]:
    """List restrictions of processing, newest first: those in effect, or those that were lifted."""
    require_unrestricted(caller)
    with context.database.read() as session:
        rows = queries.page_erasures(session, ErasureState(state), None, after, limit + 1)
        return page_of(describe_all(session, rows), limit, lambda row: row, lambda row: row.id)


@router.get("/{id}", response_model=RestrictionResponse, responses=problem_responses(404, 409))
def show_restriction(id: Id, caller: Eraser, context: ContextDep) -> RestrictionResponse:
    """Get a restriction of processing."""
    require_unrestricted(caller)
    with context.database.read() as session:
        return describe_all(session, [queries.find_restriction(session, id)])[0]


@router.post("/{id}/lift", response_model=RestrictionResponse, responses=problem_responses(404, 409))
def lift_restriction(id: Id, body: GivenReason, caller: Eraser, write: Write) -> Response:
    """Lift a restriction, with a reason. Its examples become active again, and the models are adapted to them.

    Inform the person first (GDPR Art. 18(3)). Examples stay out of use if an erasure request for the subject is open.
    """
    require_unrestricted(caller)

    def act(session: Session) -> RestrictionResponse:
        restriction = queries.find_restriction(session, id)
        decisions.lift(session, restriction, body.reason, caller.key_id)
        log.write_pending(session)
        return describe_all(session, [restriction])[0]

    return write(caller, 200, act, Action.RESTRICTION_LIFTED, about)


@router.get("/{id}/letters/{kind}", response_model=LetterResponse, responses=PRINTABLE)
def show_restriction_letter(
    id: Id,
    kind: Annotated[LetterKind, Path(description="`restriction` or `lifting`.")],
    caller: Eraser,
    context: ContextDep,
    accept: Accept = "application/json",
) -> Response:
    """Get a letter to the person about the restriction, as JSON or as a printable page."""
    require_unrestricted(caller)
    with context.database.read() as session:
        restriction = queries.find_restriction(session, id)
        known, reference = read_circumstances(session, restriction)
        return respond(context, restriction, letters.write_letter(kind, restriction, known), reference, accept)
