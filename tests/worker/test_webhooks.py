"""Events, from what happens to a receiver that is there, or comes back."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

from amend import Client
from core.clock import now
from core.database import utc_text
from tests.receiver import Receiver, is_signed, receiving
from tests.worker.deployment import Deployment, problem
from tests.worker.erasure_helpers import erase, train_with_person
from tests.worker.test_failures import poison
from tests.worker.test_promotion import outside, retrained


@contextmanager
def told(deployment: Deployment, *events: str) -> Iterator[tuple[Receiver, dict[str, Any]]]:
    """A receiver, and the webhook that leads there."""
    with receiving() as receiver:
        webhook = deployment.post("/v1/webhooks", {"url": receiver.url, "events": list(events) or None})
        try:
            yield receiver, webhook
        finally:
            with deployment.client() as client:
                client.delete(f"/v1/webhooks/{webhook['id']}")


def test_events_of_an_erasure_contain_no_personal_data(deployment: Deployment) -> None:
    with told(deployment) as (receiver, webhook):
        name, person, *_ = train_with_person(deployment)
        receipt = erase(deployment, person)

        def arrived() -> bool:
            return any(one["erasure"] == receipt["erasure"] for one in receiver.events("erasure.completed"))

        deployment.wait_until(arrived)
        [done] = [one for one in receiver.events("erasure.completed") if one["erasure"] == receipt["erasure"]]
        assert (done["receipt"], done["sha256"]) == (receipt["number"], receipt["sha256"])
        assert done["head"] == deployment.get(f"/v1/receipts/{receipt['number']}")["register"]["head"]
        promoted = [one for one in receiver.events("version.promoted") if one["model"] == name]
        assert promoted[0] == {"model": name, "version": 1, "previous": None, "by": "policy"}
        assert len(promoted) > 1
        assert all(is_signed(webhook["secret"], headers, body) for headers, body in receiver.got)
        assert all(person.encode() not in body for _, body in receiver.got)


def test_failed_jobs_and_erasures_due_soon_send_events(deployment: Deployment) -> None:
    with told(deployment, "job.failed", "erasure.due_soon") as (receiver, _):
        name = deployment.new_model(input={"kind": "vector", "dim": 1}, architecture={"kind": "linear", "degree": 10})
        poison(deployment, name, split="train")
        job = deployment.adapted(name)
        assert job["state"] == "failed"
        failed = {"model": name, "job": job["id"], "kind": "adapt", "code": "solver_failed"}
        deployment.wait_until(lambda: failed in receiver.events("job.failed"))
        received = utc_text(now() - timedelta(days=26))
        body = {"subject": f"nobody of {name}", "received_at": received, "hold": True}
        erasure = deployment.post("/v1/erasures", body)
        soon = {"erasure": erasure["id"], "state": "held", "due_at": erasure["due_at"], "receipt": None, "sha256": None}
        deployment.wait_until(lambda: any(soon.items() <= one.items() for one in receiver.events("erasure.due_soon")))
        assert all(one["head"]["size"] > 0 for one in receiver.events("erasure.due_soon"))


def test_the_withdrawal_of_a_model_sends_one_event(deployment: Deployment) -> None:
    with told(deployment, "model.withdrawn") as (receiver, _):
        name, (x, y) = deployment.new_model(), problem(50)
        person = f"all of {name}"
        deployment.add_examples(name, x, y, split="train", subject=person)
        deployment.adapted(name)
        deployment.ended(deployment.remove(name, range(50))["job"])
        erase(deployment, person)
        withdrawn = {"model": name, "version": 1}
        deployment.wait_until(lambda: withdrawn in receiver.events("model.withdrawn"))
        assert receiver.events("model.withdrawn").count(withdrawn) == 1


def test_a_retrain_outside_the_tolerance_sends_an_event(deployment: Deployment) -> None:
    with told(deployment, "tolerance.missed") as (receiver, _):
        name = outside(deployment)
        retrained(deployment, name)
        missed = {"model": name, "adapted": 2, "retrained": 3, "position": 300}
        deployment.wait_until(lambda: missed in receiver.events("tolerance.missed"))


def test_a_webhook_is_tried_out_with_the_client(deployment: Deployment) -> None:
    with receiving() as receiver, Client(deployment.url, deployment.admin_key) as client:
        webhook = client.create_webhook(receiver.url, events=["job.failed"])
        sent = client.test_webhook(webhook)
        assert (sent.type, sent.state, sent.status) == ("ping", "delivered", 204)
        # jobs of other tests fail meanwhile
        [(headers, body)] = [got for got in receiver.got if got[0]["webhook-id"] == sent.id]
        assert is_signed(webhook.secret, headers, body)
        receiver.status = 500
        assert client.test_webhook(webhook).error == "The receiver returned 500."
        pings = [one for one in client.deliveries(webhook) if one.type == "ping"]
        assert [one.state for one in pings] == ["given_up", "delivered"]
        assert webhook.id in [one.id for one in client.webhooks()]
        client.delete_webhook(webhook)
        assert webhook.id not in [one.id for one in client.webhooks()]
