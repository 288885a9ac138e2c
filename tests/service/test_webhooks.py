"""Webhooks over REST: create, list, delete; events are stored in the transaction that causes them."""

from __future__ import annotations

import json
from typing import Any

import httpx
import pytest
from sqlalchemy import select

from core.tables.webhooks import Delivery
from tests.service.expect import add, location, paged, refused, rows
from tests.stack import Stack

URL = "https://receiver.example/amend?team=a"


def create(api: httpx.Client, url: str = URL, **more: Any) -> dict[str, Any]:
    answer = api.post("/v1/webhooks", json={"url": url, **more})
    assert answer.status_code == 201, answer.text
    made: dict[str, Any] = answer.json()
    return made


def deliveries(api: httpx.Client, webhook: dict[str, Any]) -> list[dict[str, Any]]:
    return list(paged(api, f"/v1/webhooks/{webhook['id']}/deliveries"))


def test_the_secret_is_shown_once(stack: Stack, api: httpx.Client) -> None:
    made = create(api, events=["job.failed", "version.promoted"])
    assert made["secret"].startswith("whsec_")
    [shown] = [one for one in paged(api, "/v1/webhooks") if one["id"] == made["id"]]
    assert shown == {name: value for name, value in made.items() if name != "secret"}
    assert (shown["url"], shown["events"], shown["disabled_at"]) == (URL, ["job.failed", "version.promoted"], None)
    assert api.delete(f"/v1/webhooks/{made['id']}").status_code == 204
    refused(api.delete(f"/v1/webhooks/{made['id']}"), 404, "webhook_not_found")


def test_a_promotion_is_sent_to_subscribed_webhooks(stack: Stack, api: httpx.Client) -> None:
    told, not_told = create(api), create(api, events=["erasure.completed"])
    name = stack.model()
    add(api, name, rows(6))
    stack.train(name)
    stack.train(name)
    api.post(f"/v1/models/{name}/versions/1/promote").raise_for_status()
    refused(api.post(f"/v1/models/{name}/versions/9/promote"), 404)
    found = [one for one in deliveries(api, told) if one["type"] == "version.promoted"]
    assert [(one["state"], one["attempts"], one["status"]) for one in found] == [("pending", 0, None)] * 3
    assert deliveries(api, not_told) == []
    with stack.database.read() as session:
        body = json.loads(session.scalars(select(Delivery.body).where(Delivery.message_id == found[0]["id"])).one())
    assert body["type"] == "version.promoted"
    key = stack.admin_key.split("_")[1]
    assert body["data"] == {"model": name, "version": 1, "previous": 2, "by": key}
    for webhook in (told, not_told):
        api.delete(f"/v1/webhooks/{webhook['id']}").raise_for_status()


def test_a_repeated_test_sends_one_ping(stack: Stack, api: httpx.Client) -> None:
    webhook = create(api)
    path = f"/v1/webhooks/{webhook['id']}/test"
    first, second = (api.post(path, headers={"Idempotency-Key": webhook["id"]}) for _ in range(2))
    assert (first.status_code, first.json()) == (202, second.json())
    assert [(one["id"], one["type"]) for one in deliveries(api, webhook)] == [(first.json()["id"], "ping")]
    refused(api.post("/v1/webhooks/none/test"), 404, "webhook_not_found")
    api.delete(f"/v1/webhooks/{webhook['id']}").raise_for_status()


BAD_URLS = [
    *("ftp://receiver.example/", "receiver.example", "https://", "http://[::1", "https://user:word@receiver.example/"),
    *(
        "https://receiver.example/#part",
        "https://receiver.example:99999/",
        "https://receiver.example/ä",
        "https://a b/",
    ),
    *("http://127.0.0.1/", "http://[::1]/", "http://169.254.169.254/latest/meta-data/", "http://10.0.0.1:8080/"),
    *("http://localhost:9000/", "http://amend.localhost/", "http://LOCALHOST./", "http://127.1/", "http://0x7f000001/"),
]


@pytest.mark.parametrize("url", BAD_URLS)
def test_a_forbidden_webhook_address_is_refused(stack: Stack, api: httpx.Client, url: str) -> None:
    assert location(refused(api.post("/v1/webhooks", json={"url": url}), 422, "webhook_url_invalid")) == ["url"]


@pytest.mark.parametrize("events", [[], ["version.demoted"], "version.promoted"])
def test_unknown_events_are_refused(stack: Stack, api: httpx.Client, events: Any) -> None:
    refused(api.post("/v1/webhooks", json={"url": URL, "events": events}), 422, "request_invalid")


def test_webhooks_take_an_admins_key_for_all_models(stack: Stack, api: httpx.Client) -> None:
    with stack.client(stack.key("admin", models=[stack.model()])) as limited:
        refused(limited.get("/v1/webhooks"), 403, "key_limited")
        refused(limited.post("/v1/webhooks", json={"url": URL}), 403, "key_limited")
