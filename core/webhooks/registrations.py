"""Creating, finding and deleting webhooks, and queries about their deliveries."""

import ipaddress
import socket
import uuid
from collections.abc import Sequence
from datetime import datetime, timedelta
from functools import cache
from urllib.parse import urlsplit

from sqlalchemy import Select, bindparam, delete, exists, func, or_, select
from sqlalchemy.orm import Session, aliased

from core.clock import now
from core.database import UtcDateTime
from core.errors import Invalid, NotFound
from core.paging import invalid_cursor
from core.tables.webhooks import PING, Delivery, DeliveryState, Webhook, WebhookEvent
from core.webhooks import events, signing
from core.webhooks.http_post import is_public

BATCH_PER_WEBHOOK = 20
"""Maximum number of deliveries to one webhook in a batch."""
RETENTION = timedelta(days=7)
"""How long deliveries are kept; longer than the retries take."""


def create(
    session: Session, url: str, wanted: Sequence[WebhookEvent] | None, private: bool, service_secret: bytes
) -> tuple[Webhook, str]:
    """Create a webhook; returns it with its secret, which is shown only once."""
    check_url(url, private)
    secret = signing.new_secret()
    names = None if wanted is None else sorted({event.value for event in wanted})
    stored = signing.encrypt(secret, service_secret)
    webhook = Webhook(id=str(uuid.uuid4()), url=url, events=names, secret=stored)
    session.add(webhook)
    session.flush()
    return webhook, secret


def check_url(url: str, private: bool) -> None:
    """Raise Invalid if the URL cannot be a receiver. Host names are resolved only when a delivery is sent."""

    def invalid(message: str) -> Invalid:
        return Invalid.at(("url",), "webhook_url_invalid", message)

    try:
        parts = urlsplit(url)
        host, _ = parts.hostname, parts.port
    except ValueError:
        raise invalid("expected https://HOST/PATH or http://HOST/PATH") from None
    if parts.scheme not in ("http", "https") or not host or not (url.isascii() and url.isprintable()) or " " in url:
        raise invalid("expected https://HOST/PATH or http://HOST/PATH, in ASCII")
    if parts.username is not None or parts.password is not None or parts.fragment:
        raise invalid("must contain neither a user nor a fragment; receivers authenticate deliveries by signature")
    if not private and is_known_private(host):
        raise invalid("is a private address; AMEND_PRIVATE_WEBHOOKS allows them")


def is_known_private(host: str) -> bool:
    """Whether a host is evidently private: a private IP address in any notation, or localhost.

    >>> [is_known_private(host) for host in ("10.0.0.1", "127.1", "::1", "localhost", "a.localhost.", "example.com")]
    [True, True, True, True, True, False]
    """
    try:
        return not is_public(ipaddress.ip_address(host))
    except ValueError:
        pass
    try:
        return not is_public(ipaddress.IPv4Address(socket.inet_aton(host)))
    except OSError:
        return host.lower().rstrip(".").rpartition(".")[2] == "localhost"


def find(session: Session, id: str) -> Webhook:
    """Find a webhook by id; raises NotFound."""
    webhook = session.get(Webhook, id) if id.isprintable() else None
    if webhook is None:
        raise NotFound("webhook_not_found", "This webhook does not exist.")
    return webhook


def remove(session: Session, webhook: Webhook) -> None:
    session.execute(delete(Delivery).where(Delivery.webhook_id == webhook.id))
    session.delete(webhook)


def ping(session: Session, webhook: Webhook) -> Delivery:
    """Enqueue a test delivery, even for a disabled webhook, which is enabled again if the delivery succeeds."""
    delivery = events.enqueue(session, webhook, PING, {"webhook": webhook.id})
    session.flush()
    return delivery


def page_webhooks(session: Session, after: str, limit: int) -> Sequence[Webhook]:
    """A page of webhooks, ordered by id."""
    if not (after.isascii() and after.isprintable()):
        raise invalid_cursor()
    return session.scalars(select(Webhook).where(Webhook.id > after).order_by(Webhook.id).limit(limit)).all()


def page_deliveries(session: Session, webhook: Webhook, last: int, limit: int) -> Sequence[Delivery]:
    """A page of a webhook's deliveries, newest first, starting at the id `last`."""
    query = select(Delivery).where(Delivery.webhook_id == webhook.id, Delivery.id <= last)
    return session.scalars(query.order_by(Delivery.id.desc()).limit(limit)).all()


def due_deliveries(session: Session, moment: datetime, limit: int) -> list[tuple[int, str]]:
    """The ids of the deliveries that are due, each with the id of its webhook, oldest first.

    There are only a few per webhook, so that one with a slow or failing receiver does not delay the others.
    """
    found = session.execute(select_due(), {"moment": moment, "limit": limit})
    return [(row.id, row.webhook_id) for row in found]


@cache  # building the statement takes longer than running it
def select_due() -> Select[int, str]:
    pending, earlier = Delivery.state == DeliveryState.PENDING, aliased(Delivery)
    moment = bindparam("moment", type_=UtcDateTime)
    enabled = or_(Webhook.disabled_at.is_(None), Delivery.type == PING)
    failed = exists().where(
        earlier.webhook_id == Delivery.webhook_id,
        earlier.state == DeliveryState.PENDING,
        earlier.id < Delivery.id,
        earlier.attempts > 0,
        earlier.next_attempt_at > moment,
    )
    place = func.row_number().over(partition_by=Delivery.webhook_id, order_by=(Delivery.type != PING, Delivery.id))
    due = (pending, Delivery.next_attempt_at <= moment, enabled, or_(Delivery.type == PING, ~failed))
    ranked = select(Delivery.id, Delivery.webhook_id, place.label("place"))
    each = ranked.join(Webhook, Webhook.id == Delivery.webhook_id).where(*due).subquery()
    query = select(each.c.id, each.c.webhook_id).where(each.c.place <= BATCH_PER_WEBHOOK)
    return query.order_by(each.c.id).limit(bindparam("limit"))


def count_failing(session: Session) -> tuple[int, int]:
    """How many webhooks have not accepted a delivery since one failed, and how many are disabled for that reason."""
    disabled = func.count(Webhook.disabled_at)
    failing, off = session.execute(select(func.count(Webhook.failing_since) - disabled, disabled)).one()
    return max(0, failing), off


def delete_old(session: Session) -> None:
    """Delete deliveries whose retention period has ended."""
    session.execute(delete(Delivery).where(Delivery.created_at < now() - RETENTION))
