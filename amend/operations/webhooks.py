"""Webhooks and their deliveries."""

from __future__ import annotations

import time
from collections.abc import Iterable

from amend import responses
from amend.client_methods import listing, operation
from amend.requests import Call, Caller, Flow, Pages, Pause, list_of, path
from amend.waiting import id_of

POLL_SECONDS = 0.5


class Webhooks(Caller):
    @operation
    def create_webhook(self, url: str, events: Iterable[str] | None = None) -> Flow[responses.CreatedWebhook]:
        """Send all or the given events to a URL. Store the returned secret: the service does not show it again."""
        body = {"url": url, "events": None if events is None else list_of(events)}
        return self.ask(responses.CreatedWebhook, "POST", path("webhooks"), body)

    @listing
    def webhooks(self) -> Pages[responses.Webhook]:
        """Iterate over the webhooks."""
        return Pages(responses.Webhook, path("webhooks"))

    @operation
    def delete_webhook(self, webhook: responses.Webhook | str) -> Flow[None]:
        """Delete a webhook."""
        yield from self.send(Call("DELETE", path("webhooks", id_of(webhook))))

    @operation
    def test_webhook(self, webhook: responses.Webhook | str, *, timeout: float = 30) -> Flow[responses.Delivery]:
        """Send a ``ping`` and wait for its delivery. After ``timeout`` seconds its state is still ``pending``."""
        place, end = path("webhooks", id_of(webhook)), time.monotonic() + timeout
        sent = yield from self.ask(responses.Delivery, "POST", f"{place}/test")
        while sent.state == "pending" and time.monotonic() < end:
            yield Pause(POLL_SECONDS)
            found = yield from Pages(responses.Delivery, f"{place}/deliveries").page(self, None, None)
            sent = next((delivery for delivery in found.items if delivery.id == sent.id), sent)
        return sent

    @listing
    def deliveries(self, webhook: responses.Webhook | str) -> Pages[responses.Delivery]:
        """Iterate over the deliveries of the last seven days, newest first."""
        return Pages(responses.Delivery, path("webhooks", id_of(webhook), "deliveries"))
