"""API keys: issue, list, revoke."""

from datetime import datetime
from typing import Annotated

from fastapi import APIRouter, Path
from pydantic import BaseModel, ConfigDict, Field
from sqlalchemy.orm import Session
from starlette.responses import Response

from core.audit.entries import About
from core.errors import NotFound
from core.keys import api_keys
from core.keys.queries import page_keys
from core.keys.quotas import Quota
from core.models import catalog
from core.models.field_types import Moment, Strict, Text
from core.tables.audit import Action
from core.tables.keys import Key, Scope
from service.context import ContextDep
from service.http.auth import Admin
from service.http.pagination import After, Limit, Page, page_of
from service.http.problems import problem_responses
from service.http.request_audit import AuditorDep
from service.http.routes import AuthenticatedRoute
from service.http.unit_of_work import Write
from service.models.schemas import ModelName

router = APIRouter(prefix="/v1/keys", tags=["Keys"], route_class=AuthenticatedRoute)


class NewKey(Strict):
    """Scopes and models of a new key."""

    model_config = ConfigDict(
        json_schema_extra={"examples": [{"name": "pipeline", "scopes": ["read", "ingest"], "models": ["churn"]}]}
    )

    name: Text
    scopes: list[Scope] = Field(min_length=1, max_length=len(Scope))
    models: list[ModelName] | None = Field(None, min_length=1, max_length=1000, description="Null: all models.")
    expires_at: Moment | None = Field(None, description="UTC unless it has a time zone. Null: never expires.")
    quota: Quota | None = Field(None, description="Limits of what the key may use. Null: none.")


class KeyResponse(BaseModel):
    """An API key, without its secret."""

    id: str
    name: str
    person: bool = Field(description="Whether this is a person who signs in at the identity provider.")
    scopes: list[Scope]
    models: list[str] | None
    created_at: datetime
    last_used_at: datetime | None = Field(description="Updated about once a minute.")
    expires_at: datetime | None
    quota: Quota | None


class IssuedKeyResponse(KeyResponse):
    """A new key with the text to send as `Authorization: Bearer ...`. The text is shown only once."""

    key: str


def to_response(key: Key) -> KeyResponse:
    return KeyResponse.model_validate(key, from_attributes=True)


@router.post("", status_code=201, response_model=IssuedKeyResponse, responses=problem_responses(404, 409))
def issue_key(body: NewKey, caller: Admin, write: Write) -> Response:
    """Issue a key. Only its hash is stored, so save the key from this response. The models that the key is limited to
    must exist, unless it has the scope `admin` and can create them.
    """
    caller.require_all_models()

    def issue(session: Session) -> IssuedKeyResponse:
        if body.models and Scope.ADMIN not in body.scopes:
            known = catalog.existing_names(session, body.models)
            for i, name in enumerate(body.models):
                if name not in known:
                    raise NotFound.at(("models", i), "model_not_found", f"model {name!r} does not exist")
        key, text = api_keys.issue(session, body.name, body.scopes, body.models, body.expires_at)
        key.quota = None if body.quota is None else body.quota.model_dump(exclude_none=True)
        return IssuedKeyResponse(**dict(to_response(key)), key=text)

    return write(caller, 201, issue, Action.KEY_CREATED, lambda key: [About(object_id=key.id)])


@router.get("", response_model=Page[KeyResponse], responses=problem_responses())
def list_keys(caller: Admin, context: ContextDep, limit: Limit = 100, after: After = None) -> Page[KeyResponse]:
    """List the keys that are not revoked, and the people who have signed in at the identity provider."""
    caller.require_all_models()
    with context.database.read() as session:
        keys = page_keys(session, after or "", limit + 1)
        return page_of(keys, limit, to_response, lambda key: key.id)


@router.delete("/{id}", status_code=204, response_class=Response, responses=problem_responses(404))
def revoke_key(
    id: Annotated[str, Path(max_length=20, pattern="^[a-z0-9]+$")],
    caller: Admin,
    context: ContextDep,
    auditor: AuditorDep,
) -> None:
    """Revoke a key, or lock out a person who signs in at the identity provider. Other processes accept it for at most
    one more second.
    """
    caller.require_all_models()
    with context.database.write() as session:
        api_keys.revoke(session, id)
        auditor.record(session, caller, Action.KEY_REVOKED, About(object_id=id))
    context.callers.clear()
