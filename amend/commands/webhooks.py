"""``amend webhooks``: who is told of what happens."""

from typing import Annotated

import typer

from amend.client import Client
from amend.commands import output
from amend.commands.connection import After, Connection, Limit, Yes, command, confirm, fail
from amend.responses import Delivery, Webhook

app = typer.Typer(help="Have events sent to addresses of your own.", no_args_is_help=True)

WebhookId = Annotated[str, typer.Argument(metavar="ID", help="The webhook's id.")]

COLUMNS: output.Columns[Webhook] = {
    "id": lambda webhook: webhook.id,
    "url": lambda webhook: webhook.url,
    "events": lambda webhook: "all" if webhook.events is None else ", ".join(webhook.events),
    "failing since": lambda webhook: output.format_time(webhook.failing_since),
    "disabled": lambda webhook: webhook.disabled_why,
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
    """List the webhooks, not their secrets.

    Example: amend webhooks list
    """
    connection.show_page(Client.webhooks, COLUMNS, limit, after)


@command(app)
def create(
    connection: Connection,
    to: Annotated[str, typer.Argument(metavar="ADDRESS", help="Where events go: https://...")],
    event: Annotated[
        list[str] | None,
        typer.Option("--event", help="Only this one, as version.promoted. Can be repeated. Default: all."),
    ] = None,
) -> None:
    """Have events sent to an address. This is the only time that its secret is shown.

    Example: amend webhooks create https://example.com/amend --event version.promoted --event job.failed
    """
    connection.client.create_webhook(to, event or None)
    connection.show(connection.answer)
    output.note("Keep the secret now: the service does not show it again.")


@command(app)
def test(connection: Connection, webhook_id: WebhookId) -> None:
    """Have a ping sent, and wait for what comes of it.

    Example: amend webhooks test 8d1f7c52-6f0e-4f3a-9a54-0f2b6f5f9d11
    """
    sent = connection.client.test_webhook(webhook_id)
    if sent.state == "pending":
        fail("nobody has sent it yet: is the scheduler running?")
    if sent.state != "delivered":
        fail(f"it did not get there: {sent.error}")
    connection.say({"id": sent.id, "status": sent.status}, f"Delivered: the receiver answered {sent.status}.")


@command(app)
def deliveries(connection: Connection, webhook_id: WebhookId, limit: Limit = None, after: After = None) -> None:
    """List what a webhook was told, or is to be told, in the last seven days.

    Example: amend webhooks deliveries 8d1f7c52-6f0e-4f3a-9a54-0f2b6f5f9d11
    """
    connection.show_page(Client.deliveries, DELIVERY_COLUMNS, limit, after, webhook_id)


@command(app)
def delete(connection: Connection, webhook_id: WebhookId, yes: Yes = False) -> None:
    """Send nothing there any more.

    Example: amend webhooks delete 8d1f7c52-6f0e-4f3a-9a54-0f2b6f5f9d11
    """
    confirm(f"Delete the webhook {webhook_id}?", yes)
    connection.client.delete_webhook(webhook_id)
    connection.say(None, f"Deleted {webhook_id}.")
