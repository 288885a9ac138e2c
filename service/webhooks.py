"""Webhooks: create, list, test, delete; and their deliveries."""

from datetime import datetime
from typing import Annotated

from fastapi import APIRouter, Path
from pydantic import BaseModel, ConfigDict, Field
from sqlalchemy.orm import Session
from starlette.responses import Response

from core.audit.entries import About
from core.models.field_types import Strict
from core.tables.audit import Action
from core.tables.webhooks import Delivery, DeliveryState, Webhook, WebhookEvent
from core.webhooks import registrations
from service.context import ContextDep
from service.http.auth import Admin
from service.http.pagination import After, Limit, Page, page_of, parse_cursor
from service.http.problems import problem_responses
from service.http.request_audit import AuditorDep
from service.http.routes import AuthenticatedRoute
from service.http.unit_of_work import Write

router = APIRouter(prefix="/v1/webhooks", tags=["Webhooks"], route_class=AuthenticatedRoute)

MAX_DELIVERY_ID = 10**18
Id = Annotated[str, Path(description="Id of the webhook.", max_length=36)]


class NewWebhook(Strict):
    """URL and events of a new webhook."""

    model_config = ConfigDict(
        json_schema_extra={"examples": [{"url": "https://example.com/amend", "events": ["version.promoted"]}]}
    )

    url: str = Field(
        min_length=1,
        max_length=2000,
        description="http or https; unless the operator allows others, with a public address.",
    )
    events: list[WebhookEvent] | None = Field(
        None,
        min_length=1,
        max_length=len(WebhookEvent),
        description="Null: all events, including events that later releases add.",
    )


class WebhookResponse(BaseModel):
    """A webhook, without its secret."""

    id: str
    url: str
    events: list[str] | None
    failing_since: datetime | None = Field(description="First failed delivery since the last successful one.")
    disabled_at: datetime | None = Field(description="After three days of failures. A successful test enables it.")
    disabled_reason: str | None
    created_at: datetime


class CreatedWebhookResponse(WebhookResponse):
    """A new webhook with the secret that signs its deliveries. The secret is shown only once."""

    secret: str = Field(examples=["whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"])


class DeliveryResponse(BaseModel):
    """Delivery of one event to one webhook. Only the status of the receiver's responses is stored."""

    id: str = Field(description="The `webhook-id` header, the same for every attempt.")
    type: str
    state: DeliveryState
    attempts: int
    status: int | None = Field(description="HTTP status of the last response.")
    error: str | None
    next_attempt_at: datetime | None = Field(description="Time of the next attempt; null if there is none.")
    delivered_at: datetime | None
    created_at: datetime


def of_webhook(webhook: Webhook) -> WebhookResponse:
    return WebhookResponse.model_validate(webhook, from_attributes=True)


def of_delivery(delivery: Delivery) -> DeliveryResponse:
    values = {name: getattr(delivery, name) for name in DeliveryResponse.model_fields}
    next_attempt_at = delivery.next_attempt_at if delivery.state is DeliveryState.PENDING else None
    return DeliveryResponse.model_validate({**values, "id": delivery.message_id, "next_attempt_at": next_attempt_at})


@router.post("", status_code=201, response_model=CreatedWebhookResponse, responses=problem_responses(409))
def create_webhook(body: NewWebhook, caller: Admin, context: ContextDep, write: Write) -> Response:
    """Create a webhook. Save the secret from this response: it is not shown again."""
    caller.require_all_models()
    settings = context.settings

    def create(session: Session) -> CreatedWebhookResponse:
        webhook, secret = registrations.create(
            session, body.url, body.events, settings.private_webhooks, settings.secret
        )
        return CreatedWebhookResponse(**dict(of_webhook(webhook)), secret=secret)

    return write(caller, 201, create, Action.WEBHOOK_CREATED, lambda webhook: [About(object_id=webhook.id)])


@router.get("", response_model=Page[WebhookResponse], responses=problem_responses())
def list_webhooks(caller: Admin, context: ContextDep, limit: Limit = 100, after: After = None) -> Page[WebhookResponse]:
    """List the webhooks, including failing and disabled ones."""
    caller.require_all_models()
    with context.database.read() as session:
        rows = registrations.page_webhooks(session, after or "", limit + 1)
        return page_of(rows, limit, of_webhook, lambda row: row.id)


@router.delete("/{id}", status_code=204, response_class=Response, responses=problem_responses(404))
def delete_webhook(id: Id, caller: Admin, context: ContextDep, auditor: AuditorDep) -> None:
    """Delete a webhook."""
    caller.require_all_models()
    with context.database.write() as session:
        registrations.remove(session, registrations.find(session, id))
        auditor.record(session, caller, Action.WEBHOOK_DELETED, About(object_id=id))


@router.post("/{id}/test", status_code=202, response_model=DeliveryResponse, responses=problem_responses(404, 409))
def test_webhook(id: Id, caller: Admin, write: Write) -> Response:
    """Send a `ping` event to the webhook. The list of deliveries shows the result shortly after."""
    caller.require_all_models()

    def ping(session: Session) -> DeliveryResponse:
        return of_delivery(registrations.ping(session, registrations.find(session, id)))

    return write(caller, 202, ping, Action.WEBHOOK_TESTED, About(object_id=id))


@router.get("/{id}/deliveries", response_model=Page[DeliveryResponse], responses=problem_responses(404))
def list_deliveries(
    id: Id, caller: Admin, context: ContextDep, limit: Limit = 100, after: After = None
) -> Page[DeliveryResponse]:
    """List the deliveries of the last seven days, newest first."""
    caller.require_all_models()
    last = min(parse_cursor(after, MAX_DELIVERY_ID) - 1, MAX_DELIVERY_ID)
    with context.database.read() as session:
        rows = registrations.page_deliveries(session, registrations.find(session, id), last, limit + 1)
        return page_of(rows, limit, of_delivery, lambda row: row.id)
