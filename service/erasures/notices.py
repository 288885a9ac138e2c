"""Drafts of notices to the recipients of copies of erased data (GDPR Art. 19)."""

from typing import Annotated, Any

from fastapi import APIRouter, Header
from starlette.responses import Response

from core.erasure import queries, receipts
from core.erasure.copies import Notice, describe_copy, write_notices
from core.erasure.receipt_content import report_from
from service.context import ContextDep
from service.erasures import printable_receipts
from service.erasures.endpoints import PRINTABLE, Id, require_unrestricted, respond_printable
from service.http.auth import Eraser
from service.http.response_model import ResponseModel
from service.http.routes import AuthenticatedRoute

router = APIRouter(prefix="/v1", tags=["Erasure"], route_class=AuthenticatedRoute)


class NoticedCopyResponse(ResponseModel):
    """A copy that left Amend before the erasure."""

    model: str
    what: str
    """What the copy consists of, in words."""
    version: int | None
    at: str
    """When the copy was made; the first time, if it was made several times."""
    count: int
    """How many times it was made."""
    last_at: str | None
    """When the last copy was made; null if there was only one."""


class NoticeResponse(ResponseModel):
    """The draft of a notice to one recipient."""

    key: str
    """Id of the API key with which the copies were made."""
    name: str | None
    """Name of the API key."""
    copies: list[NoticedCopyResponse]
    text: str
    """The draft."""


class NoticesResponse(ResponseModel):
    """The drafts for all recipients that the receipt lists. Empty if the audit log lists no copies."""

    items: list[NoticeResponse]


def to_response(notice: Notice) -> NoticeResponse:
    copies = [
        NoticedCopyResponse(
            model=model,
            what=describe_copy(copy),
            version=copy.version,
            at=copy.at,
            count=copy.count,
            last_at=copy.last_at,
        )
        for model, copy in notice.copies
    ]
    return NoticeResponse(key=notice.recipient, name=notice.name, copies=copies, text=notice.text)


@router.get("/erasures/{id}/notices", response_model=NoticesResponse, responses=PRINTABLE)
def draft_notices(
    id: Id,
    caller: Eraser,
    context: ContextDep,
    accept: Annotated[str, Header(description="`text/html` returns printable letters.")] = "application/json",
) -> Response:
    """Draft a notice to each recipient of copies that the receipt lists (GDPR Art. 19), as JSON or as letters.

    Amend sends nothing: it knows the API key that was used, but not who holds it today.
    """
    require_unrestricted(caller)
    with context.database.read() as session:
        erasure = queries.find(session, id)
        report = report_from(receipts.body_of(queries.receipt_of(session, erasure)))
    notices = write_notices(erasure.id, report.completed_at, report.models)
    body: dict[str, Any] = NoticesResponse(items=[to_response(one) for one in notices]).model_dump(mode="json")
    return respond_printable(body, accept, lambda: printable_receipts.render_notices(notices))
