"""Letters to people about their requests: confirmation, extension, completion and the like, to print or to send.

The letter of a refusal has an endpoint of its own, `/v1/erasures/{id}/refusal`.
"""

from typing import Annotated

from fastapi import APIRouter, Header, Path
from sqlalchemy.orm import Session
from starlette.responses import Response

from core.erasure import letters, queries, receipts
from core.erasure.letters import Circumstances, Letter, LetterKind
from core.register import log
from core.register.records import Acknowledgement
from core.tables.erasures import Erasure, ErasureState
from core.tables.register import RecordKind
from service.context import Context, ContextDep
from service.erasures import printable_receipts
from service.erasures.controller import sender_of
from service.erasures.endpoints import PRINTABLE, Id, require_unrestricted, respond_printable
from service.http.auth import Eraser
from service.http.response_model import ResponseModel
from service.http.routes import AuthenticatedRoute

router = APIRouter(prefix="/v1", tags=["Erasure"], route_class=AuthenticatedRoute)

Kind = Annotated[LetterKind, Path(description="What the letter tells the person.")]
Accept = Annotated[str, Header(description="`text/html` returns a printable letter.")]


class LetterResponse(ResponseModel):
    """The text of a letter to a person. The salutation and the sender's address are only on the printable letter."""

    kind: LetterKind
    request: str
    """Id of the request."""
    reference: str | None
    """The caller's own number for the request."""
    title: str
    paragraphs: list[str]
    enclosures: list[str]
    """Documents to send with the letter."""
    acknowledgement: Acknowledgement | None
    """On a confirmation: proof that the signed register contains the request."""


def read_circumstances(session: Session, erasure: Erasure) -> tuple[Circumstances, str | None]:
    """What a letter about a request needs, and the caller's reference."""
    records = log.records_of(session, erasure.id)
    completed = erasure.state is ErasureState.COMPLETED and erasure.receipt is not None
    lifted = [record.get("reason") for record in records if record["kind"] == RecordKind.LIFTED]
    known = Circumstances(
        parts=queries.parts_of(session, erasure),
        acknowledgement=log.acknowledge_filings(session, [erasure.id]).get(erasure.id),
        receipt=receipts.body_of(queries.receipt_of(session, erasure)) if completed else None,
        lifted_because=lifted[-1] if lifted else None,
    )
    return known, queries.reference_in(records)


def respond(context: Context, erasure: Erasure, letter: Letter, reference: str | None, accept: str) -> Response:
    body = LetterResponse(
        **{name: getattr(letter, name) for name in ("kind", "title", "acknowledgement")},
        request=erasure.id,
        reference=reference,
        paragraphs=list(letter.paragraphs),
        enclosures=list(letter.enclosures),
    ).model_dump(mode="json")
    return respond_printable(body, accept, lambda: printable_receipts.render_letter(body, sender_of(context.settings)))


@router.get("/erasures/{id}/letters/{kind}", response_model=LetterResponse, responses=PRINTABLE)
def show_letter(
    id: Id, kind: Kind, caller: Eraser, context: ContextDep, accept: Accept = "application/json"
) -> Response:
    """Get a letter to the person about the request, as JSON or as a printable page with the controller's address.

    The available letters depend on the state: `confirmation` always, `extension` while an extended request is open,
    `completion` or `withdrawal` afterwards.
    """
    require_unrestricted(caller)
    with context.database.read() as session:
        erasure = queries.find(session, id)
        known, reference = read_circumstances(session, erasure)
        return respond(context, erasure, letters.write_letter(kind, erasure, known), reference, accept)
