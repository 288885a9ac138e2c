"""Sending deliveries, each at least once, on the schedule that Standard Webhooks recommends. Called by the scheduler.

A process that sends a delivery first postpones its next attempt, so that no other process sends it at the same time. If
the process dies, the delivery is sent again at that time.
"""

import random
from collections import defaultdict
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from datetime import timedelta

import httpcore
import structlog
from cryptography.fernet import InvalidToken
from sqlalchemy import update

from core.clock import now
from core.database import Database, rows_changed
from core.tables.webhooks import PING, Delivery, DeliveryState, Webhook
from core.webhooks import http_post, signing
from core.webhooks.registrations import due_deliveries

log = structlog.get_logger("webhooks")

RETRY_DELAYS = [timedelta(seconds=s) for s in (5, 300, 1800, 7200, 18000, 36000, 50400, 72000, 86400)]
"""Delays before each further attempt; three days in total."""
CLAIM_DURATION = timedelta(seconds=60)
"""Maximum duration of an attempt."""
DISABLE_AFTER = timedelta(days=3)
"""A webhook whose deliveries have failed for this long is disabled."""
BATCH_SIZE = 200
"""Deliveries read at a time."""
CONCURRENT_RECEIVERS = 8
"""Receivers served at the same time."""
HTTP_GONE = 410


@dataclass(frozen=True)
class Outcome:
    """The outcome of one attempt."""

    status: int | None
    error: str | None

    @property
    def successful(self) -> bool:
        return self.error is None


class Sender:
    """Sends deliveries to several receivers at the same time, so that a slow one does not delay the others."""

    def __init__(self, database: Database, service_secret: bytes, private: bool) -> None:
        self.database, self.service_secret, self.private = database, service_secret, private
        self.threads = ThreadPoolExecutor(CONCURRENT_RECEIVERS)
        self.sending: dict[str, Future[int]] = {}
        """By webhook: its deliveries go out in order."""

    def start_due(self) -> list[Future[int]]:
        """Start to send all deliveries that are due, except to receivers that are being served; returns the number of
        attempts to each receiver.
        """
        self.sending = {webhook: future for webhook, future in self.sending.items() if not future.done()}
        with self.database.read() as session:
            due = due_deliveries(session, now(), BATCH_SIZE)
        by_webhook: dict[str, list[int]] = defaultdict(list)
        for delivery_id, webhook_id in due:
            by_webhook[webhook_id].append(delivery_id)
        started = {
            webhook: self.threads.submit(self.send_in_order, ids)
            for webhook, ids in by_webhook.items()
            if webhook not in self.sending
        }
        self.sending |= started
        return list(started.values())

    def send_in_order(self, ids: list[int]) -> int:
        for count, delivery_id in enumerate(ids, 1):
            if not send(self.database, delivery_id, self.service_secret, self.private):
                return count  # the others would fail as well
        return len(ids)

    def close(self) -> None:
        """Start no further delivery; those that were not sent stay due."""
        self.threads.shutdown(wait=False, cancel_futures=True)


def send(database: Database, delivery_id: int, service_secret: bytes, private: bool) -> bool:
    """Attempt a delivery and record the outcome; returns False if it failed."""
    with database.write() as session:
        ours = (Delivery.id == delivery_id, Delivery.state == DeliveryState.PENDING, Delivery.next_attempt_at <= now())
        claim = {"attempts": Delivery.attempts + 1, "next_attempt_at": now() + CLAIM_DURATION}
        if rows_changed(session, update(Delivery).where(*ours).values(claim)) == 0:
            return True
        delivery = session.get_one(Delivery, delivery_id)
        webhook = session.get(Webhook, delivery.webhook_id)
        if webhook is None:
            session.delete(delivery)
            return True
        session.flush()
        session.expunge_all()
    outcome = attempt(webhook, delivery, service_secret, private)
    record_outcome(database, delivery, outcome)
    return outcome.successful


def attempt(webhook: Webhook, delivery: Delivery, service_secret: bytes, private: bool) -> Outcome:
    """Send a delivery once. Only the status of the response is recorded, not its body."""
    body, timestamp = delivery.body.encode(), int(now().timestamp())
    try:
        secret = signing.decrypt(webhook.secret, service_secret)
        headers = {
            "content-type": "application/json",
            "user-agent": "amend-webhooks",
            "webhook-id": delivery.message_id,
            "webhook-timestamp": str(timestamp),
            "webhook-signature": signing.sign(secret, delivery.message_id, timestamp, body),
        }
        status = http_post.post(webhook.url, headers, body, private)
    except InvalidToken:
        return Outcome(None, "The secret was encrypted with another AMEND_SECRET_KEY. Create the webhook again.")
    except http_post.PrivateAddress:
        return Outcome(None, "The host resolves to a private address. AMEND_PRIVATE_WEBHOOKS allows them.")
    except httpcore.TimeoutException:
        return Outcome(None, f"No response within {http_post.TIMEOUT_SECONDS:.0f} s.")
    except Exception as error:  # errors of TLS, DNS or HTTP
        return Outcome(None, f"No response ({type(error).__name__}).")
    return Outcome(status, None if 200 <= status < 300 else f"The receiver returned {status}.")


def record_outcome(database: Database, sent: Delivery, outcome: Outcome) -> None:
    """Record the outcome of an attempt for the delivery and for its webhook."""
    with database.write() as session:
        delivery = session.get(Delivery, sent.id, with_for_update=True)
        webhook = session.get(Webhook, sent.webhook_id, with_for_update=True)
        if delivery is None or webhook is None or delivery.state is not DeliveryState.PENDING:
            return
        delivery.status, delivery.error = outcome.status, outcome.error
        if outcome.successful:
            delivery.state, delivery.delivered_at = DeliveryState.DELIVERED, now()
            webhook.failing_since = webhook.disabled_at = webhook.disabled_reason = None
            return
        if delivery.type == PING or delivery.attempts > len(RETRY_DELAYS):
            delivery.state = DeliveryState.GIVEN_UP
        else:
            # randomised, so that deliveries that failed together are not retried together
            delivery.next_attempt_at = now() + RETRY_DELAYS[delivery.attempts - 1] * random.uniform(0.9, 1.1)
        if delivery.type == PING:
            return
        webhook.failing_since = webhook.failing_since or now()
        gone = outcome.status == HTTP_GONE
        if webhook.disabled_at is None and (gone or now() - webhook.failing_since >= DISABLE_AFTER):
            webhook.disabled_at = now()
            webhook.disabled_reason = (
                "The receiver returned 410 Gone." if gone else f"Failed for 3 days. {outcome.error}"
            )
            pending = (Delivery.webhook_id == webhook.id, Delivery.state == DeliveryState.PENDING)
            session.execute(update(Delivery).where(*pending).values(state=DeliveryState.GIVEN_UP))
            log.warning("webhook_disabled", webhook=webhook.id, reason=webhook.disabled_reason)
