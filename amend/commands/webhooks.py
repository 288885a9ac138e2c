"""``amend webhooks``: send events to HTTP endpoints."""

from typing import Annotated

import typer

from amend.client import Client
from amend.commands import output
from amend.commands.connection import After, Connection, Limit, Yes, command, confirm, fail, option
from amend.responses import Delivery, Webhook

app = typer.Typer(help="Send events to your own HTTP endpoints.", no_args_is_help=True)

WebhookId = Annotated[str, typer.Argument(metavar="ID", help="Id of the webhook.")]

COLUMNS: output.Columns[Webhook] = {
    "id": lambda webhook: webhook.id,
    "url": lambda webhook: webhook.url,
    "events": lambda webhook: "all" if webhook.events is None else ", ".join(webhook.events),
    "failing since": lambda webhook: output.format_time(webhook.failing_since),
    "disabled": lambda webhook: webhook.disabled_reason,
}
DELIVERY_COLUMNS: output.Columns[Delivery] = {
    "id": lambda delivery: delivery.id,
    "type": lambda delivery: delivery.type,
    "state": lambda delivery: delivery.state,
    "attempts": lambda delivery: delivery.attempts,
    "status": lambda delivery: delivery.status,
    "error": lambda delivery: delivery.error,
    "created": lambda delivery: output.format_time(delivery.created_at),
}


@command(app, "list")
def list_(connection: Connection, limit: Limit = None, after: After = None) -> None:
    """List the webhooks, without their secrets.

    Example: amend webhooks list
    """
    connection.show_page(Client.webhooks, COLUMNS, limit, after)


@command(app)
def create(
    connection: Connection,
    to: Annotated[str, typer.Argument(metavar="ADDRESS", help="URL that receives the events.")],
    event: Annotated[list[str] | None, option("--event", "Event, such as version.promoted. Can be repeated.")] = None,
) -> None:
    """Register a webhook for all events, or for those given. Its secret is shown only once.

    Example: amend webhooks create https://example.com/amend --event version.promoted --event job.failed
    """
    connection.client.create_webhook(to, event or None)
    connection.show(connection.response)
    output.note("Store the secret now: the service does not show it again.")


@command(app)
def test(connection: Connection, webhook_id: WebhookId) -> None:
    """Send a ping and wait for its delivery; exit with status 1 if it fails.

    Example: amend webhooks test 8d1f7c52-6f0e-4f3a-9a54-0f2b6f5f9d11
    """
    sent = connection.client.test_webhook(webhook_id)
    if sent.state == "pending":
        fail("The ping was not sent within 30 s. Is the scheduler running?")
    if sent.state != "delivered":
        fail(f"The delivery failed: {sent.error}")
    connection.say({"id": sent.id, "status": sent.status}, f"Delivered: the receiver returned status {sent.status}.")


@command(app)
def deliveries(connection: Connection, webhook_id: WebhookId, limit: Limit = None, after: After = None) -> None:
    """List the deliveries of a webhook in the last seven days.

    Example: amend webhooks deliveries 8d1f7c52-6f0e-4f3a-9a54-0f2b6f5f9d11
    """
    connection.show_page(Client.deliveries, DELIVERY_COLUMNS, limit, after, webhook_id)


@command(app)
def delete(connection: Connection, webhook_id: WebhookId, yes: Yes = False) -> None:
    """Delete a webhook.

    Example: amend webhooks delete 8d1f7c52-6f0e-4f3a-9a54-0f2b6f5f9d11
    """
    confirm(f"Delete the webhook {webhook_id}?", yes)
    connection.client.delete_webhook(webhook_id)
    connection.say(None, f"Deleted {webhook_id}.")
