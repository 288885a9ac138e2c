"""GET /v1/audit: who did what, when and from where."""

from dataclasses import dataclass
from datetime import datetime
from typing import Annotated

from fastapi import APIRouter, Depends, Query
from pydantic import BaseModel, BeforeValidator, Field

from core.audit.queries import AuditFilter, page_entries
from core.models.field_types import Moment
from core.tables.audit import Action, AuditEntry
from service.context import ContextDep
from service.examples.endpoints import require_date
from service.http.auth import Admin
from service.http.pagination import After, Limit, Page, page_of, parse_cursor
from service.http.problems import problem_responses
from service.http.routes import AuthenticatedRoute

router = APIRouter(prefix="/v1/audit", tags=["Audit"], route_class=AuthenticatedRoute)

MAX_ENTRY_ID = 10**18
Time = Annotated[Moment | None, BeforeValidator(require_date)]


class ActorResponse(BaseModel):
    """The API key that performed an action."""

    id: str
    name: str | None = Field(description="Null if the key is not in the database, as after a restore from a backup.")


class AuditEntryResponse(BaseModel):
    """An action that changed, exported or looked up personal data, or changed who may do so.

    It identifies no person: it contains no subject, no id of an example and no values.
    """

    id: int
    at: datetime
    actor: ActorResponse
    action: str = Field(examples=["examples_removed"])
    model: str | None
    version: int | None
    position: int | None = Field(description="Of an export: the ledger position that it shows.")
    erasure: str | None = Field(description="Id of the erasure request.")
    job: str | None = Field(description="Id of the job that the action started.")
    object: str | None = Field(description="Id of the key or webhook that the action is about.")
    client: str | None = Field(
        description="IP address of the client. Behind a proxy, this requires the setting AMEND_TRUSTED_PROXIES."
    )
    request_id: str | None = Field(description="The `X-Request-ID` of the request, which is also in the log.")
    counts: dict[str, int] = Field(
        description="Numbers in the response, such as those of examples, by the name of the field."
    )


@dataclass
class AuditQuery:
    """The query parameters that choose entries."""

    actor: Annotated[str | None, Query(max_length=20, description="Only actions with this key, by its id.")] = None
    action: Annotated[Action | None, Query(description="Only this action.")] = None
    model: Annotated[str | None, Query(max_length=63, description="Only actions on this model.")] = None
    erasure: Annotated[str | None, Query(max_length=36, description="Only actions on this erasure request.")] = None
    since: Annotated[Time, Query(description="Only actions at or after this time.")] = None
    until: Annotated[Time, Query(description="Only actions before this time.")] = None


def to_response(row: tuple[AuditEntry, str | None]) -> AuditEntryResponse:
    entry, name = row
    return AuditEntryResponse(
        id=entry.id,
        at=entry.at,
        actor=ActorResponse(id=entry.actor, name=name),
        action=entry.action,
        model=entry.model,
        version=entry.version,
        position=entry.position,
        erasure=entry.erasure_id,
        job=entry.job_id,
        object=entry.object_id,
        client=entry.client,
        request_id=entry.request_id,
        counts=entry.counts or {},
    )


@router.get("", response_model=Page[AuditEntryResponse], responses=problem_responses())
def list_audit_entries(
    caller: Admin,
    context: ContextDep,
    chosen: Annotated[AuditQuery, Depends()],
    limit: Limit = 100,
    after: After = None,
) -> Page[AuditEntryResponse]:
    """List who did what, when and from where, newest first. Entries are kept for AMEND_AUDIT_RETENTION."""
    caller.require_all_models()
    before = min(parse_cursor(after, MAX_ENTRY_ID), MAX_ENTRY_ID)
    with context.database.read() as session:
        rows = page_entries(session, AuditFilter(**vars(chosen)), before, limit + 1)
        return page_of(rows, limit, to_response, lambda row: row[0].id)
