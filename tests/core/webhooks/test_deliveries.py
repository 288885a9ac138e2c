"""Deliveries: signatures, retries, and disabling of failing webhooks."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from datetime import datetime, timedelta
from typing import Any

import pytest
from sqlalchemy import delete, select, update

from core.clock import now
from core.database import Database
from core.erasure import state_changes
from core.erasure.filing import file_all
from core.erasure.request_details import RequestDetails
from core.tables.erasures import Erasure
from core.tables.webhooks import Delivery, DeliveryState, Webhook, WebhookEvent
from core.webhooks import deliveries, events, http_post, registrations, signing
from tests.receiver import Receiver, is_signed, receiving

SECRET = b"of this service"
PROMOTED, FAILED = WebhookEvent.VERSION_PROMOTED, WebhookEvent.JOB_FAILED


@pytest.fixture
def receiver(database: Database) -> Iterator[Receiver]:
    with receiving() as receiver:
        yield receiver
    with database.write() as session:
        session.execute(delete(Delivery))
        session.execute(delete(Webhook))


def create(database: Database, url: str, *wanted: WebhookEvent) -> tuple[str, str]:
    with database.write() as session:
        webhook, secret = registrations.create(session, url, wanted or None, True, SECRET)
        return webhook.id, secret


def emit(database: Database, event: WebhookEvent = PROMOTED, count: int = 1) -> None:
    with database.write() as session:
        for version in range(1, count + 1):
            events.emit(session, event, model="churn", version=version)


def send(database: Database, secret: bytes = SECRET, private: bool = True) -> int:
    """Send all deliveries that are due; the number of attempts."""
    with closing(deliveries.Sender(database, secret, private)) as sender:
        return sum(attempts.result() for attempts in sender.start_due())


def listed(database: Database, id: str) -> list[Delivery]:
    with database.read() as session:
        return list(registrations.page_deliveries(session, registrations.find(session, id), 10**18, 100))


def shown(database: Database, id: str) -> Webhook:
    with database.read() as session:
        return registrations.find(session, id)


def later(database: Database, by: timedelta) -> None:
    """As if so much time had passed."""
    with database.write() as session:
        for delivery in session.scalars(select(Delivery)):
            delivery.next_attempt_at -= by
        for webhook in session.scalars(select(Webhook).where(Webhook.failing_since.is_not(None))):
            assert webhook.failing_since is not None
            webhook.failing_since -= by


def test_a_delivery_is_signed_small_and_sent_once(database: Database, receiver: Receiver) -> None:
    id, secret = create(database, receiver.url)
    emit(database)
    assert [send(database), send(database)] == [1, 0]
    [(headers, body)] = receiver.got
    assert is_signed(secret, headers, body)
    assert not is_signed(signing.new_secret(), headers, body)
    assert json.loads(body).keys() == {"type", "timestamp", "data"}
    assert json.loads(body)["data"] == {"model": "churn", "version": 1}
    [delivery] = listed(database, id)
    assert (delivery.message_id, delivery.state, delivery.status) == (headers["webhook-id"], "delivered", 204)


def test_the_secret_cannot_be_read_from_the_database(database: Database, receiver: Receiver) -> None:
    id, secret = create(database, receiver.url)
    stored = shown(database, id).secret
    assert secret.encode() not in stored
    assert signing.decrypt(stored, SECRET) == secret
    emit(database)
    send(database, b"another key")
    assert receiver.got == []
    assert "AMEND_SECRET_KEY" in (listed(database, id)[0].error or "")


def test_an_event_that_is_rolled_back_is_not_sent(database: Database, receiver: Receiver) -> None:
    create(database, receiver.url)
    with database.write() as session:
        events.emit(session, PROMOTED, model="churn")
        session.rollback()
    assert send(database) == 0


def test_a_webhook_receives_only_the_events_it_subscribes_to(database: Database, receiver: Receiver) -> None:
    create(database, receiver.url, FAILED)
    emit(database, PROMOTED)
    emit(database, FAILED)
    assert send(database) == 1
    assert len(receiver.events("job.failed")) == 1


def test_a_failed_delivery_is_retried_with_the_same_id(database: Database, receiver: Receiver) -> None:
    id, secret = create(database, receiver.url)
    receiver.status = 500
    emit(database)
    for pause in deliveries.RETRY_DELAYS:
        assert [send(database), send(database)] == [1, 0]  # not before its time
        [delivery] = listed(database, id)
        assert (delivery.state, delivery.status, delivery.error) == ("pending", 500, "The receiver returned 500.")
        assert 0.85 * pause < delivery.next_attempt_at - now() < 1.15 * pause
        later(database, 1.2 * pause)
        with database.write() as session:
            session.execute(update(Webhook).values(failing_since=None))  # this is about the delivery alone
    assert send(database) == 1
    assert listed(database, id)[0].state is DeliveryState.GIVEN_UP
    assert len({headers["webhook-id"] for headers, _ in receiver.got}) == 1
    assert all(is_signed(secret, headers, body) for headers, body in receiver.got)


def test_a_receiver_that_recovers_gets_the_events_it_missed(database: Database, receiver: Receiver) -> None:
    id, _ = create(database, receiver.url)
    receiver.status = 503
    emit(database, count=3)
    assert send(database) == 1  # the others would fare no better
    assert shown(database, id).failing_since is not None
    receiver.status = 200
    later(database, timedelta(hours=1))
    assert send(database) == 3
    assert shown(database, id).failing_since is None
    assert {one["version"] for one in receiver.events("version.promoted")} == {1, 2, 3}


def test_a_slow_receiver_does_not_delay_others(
    database: Database, receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    create(database, "http://slow.example/")
    emit(database)
    sender, answered, post = deliveries.Sender(database, SECRET, private=True), threading.Event(), http_post.post

    def post_slowly(url: str, *request: Any) -> int:
        if "slow" in url:
            assert answered.wait(30)
            return 200
        return post(url, *request)

    monkeypatch.setattr(http_post, "post", post_slowly)
    [slow] = sender.start_due()
    create(database, receiver.url)
    emit(database)
    [quick] = sender.start_due()  # the slow one is not started twice
    assert (quick.result(30), slow.done(), len(receiver.got)) == (1, False, 1)
    answered.set()
    assert slow.result(30) == 1
    sender.close()


def test_deliveries_to_a_failing_receiver_do_not_delay_others(database: Database, receiver: Receiver) -> None:
    dead, _ = create(database, "http://127.0.0.1:9/nobody")
    emit(database, count=260)
    create(database, receiver.url)
    emit(database)
    assert send(database) == 2
    assert len(receiver.got) == 1
    assert send(database) == 0  # the dead one is asked again after its pause alone
    assert sum(one.attempts for one in listed(database, dead)) <= 1


def test_a_webhook_that_fails_for_days_is_disabled_until_a_test_delivery_succeeds(
    database: Database, receiver: Receiver
) -> None:
    id, _ = create(database, receiver.url)
    receiver.status = 500
    emit(database, count=2)
    send(database)
    later(database, timedelta(days=4))
    send(database)
    webhook = shown(database, id)
    assert webhook.disabled_at is not None
    assert webhook.disabled_reason == "Failed for 3 days. The receiver returned 500."
    assert {delivery.state for delivery in listed(database, id)} == {DeliveryState.GIVEN_UP}
    emit(database)
    assert send(database) == 0

    def ping() -> Delivery:
        with database.write() as session:
            registrations.ping(session, registrations.find(session, id))
        assert send(database) == 1
        return listed(database, id)[0]

    assert ping().state is DeliveryState.GIVEN_UP  # at once: whoever tries it out waits for it
    assert shown(database, id).disabled_at is not None
    receiver.status = 204
    assert ping().state is DeliveryState.DELIVERED
    assert shown(database, id).disabled_at is None
    emit(database)
    assert send(database) == 1


def test_a_receiver_that_returns_410_is_disabled_at_once(database: Database, receiver: Receiver) -> None:
    id, _ = create(database, receiver.url)
    receiver.status = 410
    emit(database)
    send(database)
    assert shown(database, id).disabled_reason == "The receiver returned 410 Gone."


def test_no_response_and_a_private_address_are_different_errors(database: Database, receiver: Receiver) -> None:
    id, _ = create(database, "http://127.0.0.1:1/")
    emit(database)
    send(database)
    assert listed(database, id)[0].error == "No response (ConnectError)."
    later(database, timedelta(hours=1))
    send(database, private=False)
    assert "private address" in (listed(database, id)[0].error or "")


def test_concurrent_senders_send_each_delivery_once(database: Database, receiver: Receiver) -> None:
    create(database, receiver.url)
    emit(database, count=10)
    with ThreadPoolExecutor(4) as threads:
        list(threads.map(lambda _: send(database), range(4)))
    assert sorted(one["version"] for one in receiver.events("version.promoted")) == list(range(1, 11))


def test_the_delivery_of_a_killed_sender_is_sent_again(database: Database, receiver: Receiver) -> None:
    id, _ = create(database, receiver.url)
    emit(database)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(deliveries, "attempt", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            send(database)
    assert send(database) == 0  # it may still be at it
    later(database, deliveries.CLAIM_DURATION)
    assert send(database) == 1
    assert listed(database, id)[0].state is DeliveryState.DELIVERED


def test_old_deliveries_are_deleted(database: Database, receiver: Receiver) -> None:
    id, _ = create(database, receiver.url)
    emit(database, count=2)
    send(database)
    with database.write() as session:
        oldest = session.scalars(select(Delivery)).first()
        assert oldest is not None
        oldest.created_at -= registrations.RETENTION
        registrations.delete_old(session)
    assert len(listed(database, id)) == 1


def file(database: Database, received_at: datetime) -> str:
    with database.write() as session:
        filing = RequestDetails(subject=received_at.isoformat().encode(), received_at=received_at)
        [erasure], _ = file_all(session, [filing], SECRET, "key", None)
        return erasure.id


def test_an_erasure_due_soon_is_reported_once_and_again_after_an_extension(
    database: Database, receiver: Receiver
) -> None:
    create(database, receiver.url)
    state_changes.warn_of_due(database)  # those of other tests
    send(database)
    soon, _ = file(database, now() - timedelta(days=26)), file(database, now())
    assert [state_changes.warn_of_due(database), state_changes.warn_of_due(database)] == [1, 0]
    send(database)
    told = receiver.events("erasure.due_soon")
    assert told[-1].keys() == {"erasure", "state", "due_at", "receipt", "sha256", "head"}
    assert [one["erasure"] for one in told[-1:]] == [soon]
    with database.write() as session:
        erasure = session.get_one(Erasure, soon)
        state_changes.extend(session, erasure, "many requests", "key")
        assert erasure.warned_at is None
    assert state_changes.warn_of_due(database) == 0
