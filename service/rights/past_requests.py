"""A person's requests, open or not: the way to a person's receipt."""

from fastapi import APIRouter

from core.erasure import listings
from core.erasure.identifiers import token_of
from core.tables.audit import Action
from core.tables.erasures import RESTRICTIONS
from service.context import ContextDep
from service.erasures.endpoints import require_unrestricted, to_responses
from service.erasures.schemas import ErasureResponse
from service.http.auth import Eraser
from service.http.problems import problem_responses
from service.http.request_audit import AuditorDep
from service.http.response_model import ResponseModel
from service.http.routes import AuthenticatedRoute
from service.rights.restrictions import RestrictionResponse, describe_all
from service.subjects import SubjectQuery, hash_subject

router = APIRouter(prefix="/v1/subjects", tags=["Erasure"], route_class=AuthenticatedRoute)


class PastRequestsResponse(ResponseModel):
    """All requests for one identifier, newest first. Completed erasures have a `receipt`."""

    erasures: list[ErasureResponse]
    restrictions: list[RestrictionResponse]


@router.post("/requests", response_model=PastRequestsResponse, responses=problem_responses())
def find_requests(body: SubjectQuery, caller: Eraser, context: ContextDep, auditor: AuditorDep) -> PastRequestsResponse:
    """Find all requests of a subject, open or not, with their receipts."""
    require_unrestricted(caller)
    token = token_of(hash_subject(body, context), context.settings.secret)
    auditor.record_read(caller, Action.SUBJECT_LOOKED_UP)
    with context.database.read() as session:
        found = listings.requests_of(session, [token])
        return PastRequestsResponse(
            erasures=to_responses(session, [one for one in found if one.state not in RESTRICTIONS]),
            restrictions=describe_all(session, [one for one in found if one.state in RESTRICTIONS]),
        )
