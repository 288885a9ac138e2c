"""Webhooks: made, listed, tried out, deleted; and what they were told."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated

from fastapi import APIRouter, Path
from pydantic import BaseModel, ConfigDict, Field
from sqlalchemy.orm import Session
from starlette.responses import Response

from core.models.fields import Strict
from core.tables.webhooks import Delivery, DeliveryState, Webhook, WebhookEvent
from core.webhooks import registry
from service.context import ContextDep
from service.http.auth import Admin, AuthenticatedRoute
from service.http.pages import After, Limit, Page, page_of, parse_cursor
from service.http.problems import problem_responses
from service.http.unit_of_work import Write

router = APIRouter(prefix="/v1/webhooks", tags=["Webhooks"], route_class=AuthenticatedRoute)

MAX_DELIVERY_ID = 10**18
Id = Annotated[str, Path(description="The webhook's id.", max_length=36)]


class NewWebhook(Strict):
    """Where events go, and which."""

    model_config = ConfigDict(
        json_schema_extra={"examples": [{"url": "https://example.com/amend", "events": ["version.promoted"]}]}
    )

    url: str = Field(min_length=1, max_length=2000, description="http or https; a public address, as a rule.")
    events: list[WebhookEvent] | None = Field(
        None, min_length=1, max_length=len(WebhookEvent), description="Null: all, also those that come to be later."
    )


class WebhookAnswer(BaseModel):
    """A webhook. Its secret is not shown again."""

    id: str
    url: str
    events: list[str] | None
    failing_since: datetime | None = Field(description="Of the first delivery that failed since one did not.")
    disabled_at: datetime | None = Field(description="After three days of failures; a successful test enables it.")
    disabled_why: str | None
    created_at: datetime


class CreatedAnswer(WebhookAnswer):
    """A new webhook, with the secret that its deliveries are signed with. It is shown this once."""

    secret: str = Field(examples=["whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"])


class DeliveryAnswer(BaseModel):
    """One event for one webhook. Of the receiver's answers only the status is kept."""

    id: str = Field(description="The `webhook-id` that is sent; the same at every attempt.")
    type: str
    state: DeliveryState
    attempts: int
    status: int | None = Field(description="Of the last answer.")
    error: str | None
    next_at: datetime | None = Field(description="When it is sent next; null if it is not any more.")
    delivered_at: datetime | None
    created_at: datetime


def of_webhook(webhook: Webhook) -> dict[str, object]:
    return {name: getattr(webhook, name) for name in WebhookAnswer.model_fields}


def of_delivery(delivery: Delivery) -> DeliveryAnswer:
    values = {name: getattr(delivery, name) for name in DeliveryAnswer.model_fields}
    next_at = delivery.next_at if delivery.state is DeliveryState.PENDING else None
    return DeliveryAnswer.model_validate({**values, "id": delivery.message_id, "next_at": next_at})


@router.post("", status_code=201, response_model=CreatedAnswer, responses=problem_responses(409))
def create_webhook(body: NewWebhook, caller: Admin, context: ContextDep, write: Write) -> Response:
    """Have events sent to an address. Keep the secret: it is not shown again."""
    caller.require_all_models()
    settings = context.settings

    def create(session: Session) -> CreatedAnswer:
        webhook, secret = registry.create(session, body.url, body.events, settings.private_webhooks, settings.secret)
        return CreatedAnswer.model_validate({**of_webhook(webhook), "secret": secret})

    return write(caller.credential, 201, create)


@router.get("", response_model=Page[WebhookAnswer], responses=problem_responses())
def list_webhooks(caller: Admin, context: ContextDep, limit: Limit = 100, after: After = None) -> Page[WebhookAnswer]:
    """The webhooks, and which of them fail or are disabled."""
    caller.require_all_models()
    with context.database.read() as session:
        rows = registry.page_webhooks(session, after or "", limit + 1)
        return page_of(rows, limit, lambda row: WebhookAnswer.model_validate(of_webhook(row)), lambda row: row.id)


@router.delete("/{id}", status_code=204, response_class=Response, responses=problem_responses(404))
def delete_webhook(id: Id, caller: Admin, context: ContextDep) -> None:
    """Send nothing there any more."""
    caller.require_all_models()
    with context.database.write() as session:
        registry.remove(session, registry.find(session, id))


@router.post("/{id}/test", status_code=202, response_model=DeliveryAnswer, responses=problem_responses(404, 409))
def test_webhook(id: Id, caller: Admin, write: Write) -> Response:
    """Have a `ping` sent, the way that events go; what came of it is among the deliveries a moment later."""
    caller.require_all_models()
    return write(
        caller.credential, 202, lambda session: of_delivery(registry.ping(session, registry.find(session, id)))
    )


@router.get("/{id}/deliveries", response_model=Page[DeliveryAnswer], responses=problem_responses(404))
def list_deliveries(
    id: Id, caller: Admin, context: ContextDep, limit: Limit = 100, after: After = None
) -> Page[DeliveryAnswer]:
    """What the webhook was told, or is to be told, in the last seven days; the newest first."""
    caller.require_all_models()
    last = min(parse_cursor(after, MAX_DELIVERY_ID) - 1, MAX_DELIVERY_ID)
    with context.database.read() as session:
        rows = registry.page_deliveries(session, registry.find(session, id), last, limit + 1)
        return page_of(rows, limit, of_delivery, lambda row: row.id)
