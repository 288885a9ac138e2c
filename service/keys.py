"""API keys: issued, listed, revoked."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated

from fastapi import APIRouter, Path
from pydantic import BaseModel, ConfigDict, Field
from sqlalchemy.orm import Session
from starlette.responses import Response

from core.errors import NotFound
from core.keys import keyring
from core.keys.queries import page_keys
from core.models import catalog
from core.models.fields import Moment, Strict, Text
from core.tables.keys import Key, Scope
from service.context import ContextDep
from service.http.auth import Admin, AuthenticatedRoute
from service.http.pages import After, Limit, Page, page_of
from service.http.problems import problem_responses
from service.http.unit_of_work import Write
from service.models.schemas import ModelName

router = APIRouter(prefix="/v1/keys", tags=["Keys"], route_class=AuthenticatedRoute)


class NewKey(Strict):
    """What a new key may do, and with which models."""

    model_config = ConfigDict(
        json_schema_extra={"examples": [{"name": "pipeline", "scopes": ["read", "ingest"], "models": ["churn"]}]}
    )

    name: Text
    scopes: list[Scope] = Field(min_length=1, max_length=len(Scope))
    models: list[ModelName] | None = Field(None, min_length=1, max_length=1000, description="Null: all models.")
    expires_at: Moment | None = Field(
        None,
        description="From when on it is refused; UTC where it has no time zone. Null: it stays until revoked.",
    )


class KeyAnswer(BaseModel):
    """A key. Its secret is not shown again."""

    id: str
    name: str
    scopes: list[Scope]
    models: list[str] | None
    created_at: datetime
    last_used_at: datetime | None = Field(description="At most about a minute behind.")
    expires_at: datetime | None


class IssuedAnswer(KeyAnswer):
    """A new key, with the text to send as `Authorization: Bearer ...`. It is shown this once."""

    key: str


def values(key: Key) -> dict[str, object]:
    return {name: getattr(key, name) for name in KeyAnswer.model_fields}


@router.post("", status_code=201, response_model=IssuedAnswer, responses=problem_responses(404, 409))
def issue_key(body: NewKey, caller: Admin, write: Write) -> Response:
    """Issue a key. Only a hash of it is stored: keep the answer. The models that it is limited to must be there, unless
    it may create them.
    """
    caller.require_all_models()

    def issue(session: Session) -> IssuedAnswer:
        # but for who may create them
        if body.models and Scope.ADMIN not in body.scopes:
            known = catalog.existing_names(session, body.models)
            for i, name in enumerate(body.models):
                if name not in known:
                    raise NotFound.at(("models", i), "model_not_found", f"there is no model {name!r}")
        key, text = keyring.issue(session, body.name, body.scopes, body.models, body.expires_at)
        return IssuedAnswer.model_validate({**values(key), "key": text})

    return write(caller.credential, 201, issue)


@router.get("", response_model=Page[KeyAnswer], responses=problem_responses())
def list_keys(caller: Admin, context: ContextDep, limit: Limit = 100, after: After = None) -> Page[KeyAnswer]:
    """The keys that are not revoked."""
    caller.require_all_models()
    with context.database.read() as session:
        keys = page_keys(session, after or "", limit + 1)
        return page_of(keys, limit, lambda key: KeyAnswer.model_validate(values(key)), lambda key: key.id)


@router.delete("/{id}", status_code=204, response_class=Response, responses=problem_responses(404))
def revoke_key(
    id: Annotated[str, Path(max_length=20, pattern="^[a-z0-9]+$")], caller: Admin, context: ContextDep
) -> None:
    """Revoke a key. Other processes go on accepting it for a second at most."""
    caller.require_all_models()
    with context.database.write() as session:
        keyring.revoke(session, id)
    context.callers.clear()
