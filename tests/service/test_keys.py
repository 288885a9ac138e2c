"""API keys: issue, limit, revoke; only a hash is stored."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any

import httpx
import pytest

from core.clock import now
from core.tables.keys import Key
from tests.service.expect import add, location, paged, refused, rows, soon
from tests.stack import Stack


def issue(api: httpx.Client, **body: Any) -> dict[str, Any]:
    answer = api.post("/v1/keys", json={"name": "pipeline", "scopes": ["read"], **body})
    assert answer.status_code == 201, answer.text
    issued: dict[str, Any] = answer.json()
    return issued


def shown(api: httpx.Client, id_: str) -> dict[str, Any] | None:
    return next((key for key in paged(api, "/v1/keys", limit=1000) if key["id"] == id_), None)


def test_a_new_key_is_shown_once(stack: Stack, api: httpx.Client) -> None:
    name = stack.model()
    issued = issue(api, scopes=["read", "ingest"], models=[name])
    text = issued.pop("key")
    prefix = f"amend_{issued['id']}_"
    assert text.startswith(prefix)
    assert issued == {
        "id": issued["id"],
        "name": "pipeline",
        "person": False,
        "scopes": ["read", "ingest"],
        "models": [name],
        "created_at": issued["created_at"],
        "last_used_at": None,
        "expires_at": None,
        "quota": None,
    }
    assert shown(api, issued["id"]) == issued
    # the secret part may itself contain underscores
    assert text.removeprefix(prefix) not in api.get("/v1/keys?limit=1000").text


def test_only_a_hash_is_stored(stack: Stack, api: httpx.Client) -> None:
    issued = issue(api)
    secret = issued["key"].split("_", 2)[2]
    with stack.database.read() as session:
        key = session.get_one(Key, issued["id"])
        stored = repr([getattr(key, column.key) for column in Key.__table__.columns])
    assert secret not in stored
    assert len(key.digest) == 32


def test_keys_are_listed_in_pages(stack: Stack, api: httpx.Client) -> None:
    made = {issue(api)["id"] for _ in range(3)}
    ids = [key["id"] for key in paged(api, "/v1/keys", limit=2)]
    assert made <= set(ids)
    assert len(ids) == len(set(ids))
    refused(api.get("/v1/keys?after=%00"), 422, "cursor_invalid")


def test_a_revoked_key_is_refused_at_once(stack: Stack, api: httpx.Client) -> None:
    issued = issue(api)
    with stack.client(issued["key"]) as holder:
        assert holder.get("/v1/models").status_code == 200
        assert api.delete(f"/v1/keys/{issued['id']}").status_code == 204
        refused(holder.get("/v1/models"), 401, "key_unknown")
    assert shown(api, issued["id"]) is None
    refused(api.delete(f"/v1/keys/{issued['id']}"), 404, "key_not_found")


def test_the_time_of_last_use_is_stored(stack: Stack, api: httpx.Client) -> None:
    issued = issue(api)
    with stack.client(issued["key"]) as holder:
        holder.get("/v1/models").raise_for_status()
    assert soon(lambda: (shown(api, issued["id"]) or {})["last_used_at"] is not None)


def test_a_limited_key_sees_its_models_alone(stack: Stack, api: httpx.Client) -> None:
    mine, other = stack.model(), stack.model()
    jobs = {}
    for name in (mine, other):
        add(api, name, rows(4))
        jobs[name] = api.post(f"/v1/models/{name}/adaptations").json()["id"]
    with stack.client(stack.key("read", models=[mine])) as holder:
        assert [model["name"] for model in paged(holder, "/v1/models")] == [mine]
        assert [job["id"] for job in paged(holder, "/v1/jobs")] == [jobs[mine]]
        refused(holder.get(f"/v1/models/{other}"), 404, "model_not_found")
        refused(holder.get("/v1/jobs", params={"model": other}), 404, "model_not_found")
        refused(holder.get(f"/v1/jobs/{jobs[other]}"), 404, "job_not_found")


def test_a_limited_admin_rules_its_models_alone(stack: Stack, api: httpx.Client) -> None:
    name = stack.model()
    with stack.client(stack.key("admin", models=[name, "mine-to-make"])) as holder:
        spec = {"input": {"kind": "vector", "dim": 2}, "target": {"kind": "binary"}}
        refused(holder.post("/v1/models", json={"name": "not-mine", **spec}), 403, "key_limited")
        assert holder.post("/v1/models", json={"name": "mine-to-make", **spec}).status_code == 201
        assert holder.delete("/v1/models/mine-to-make").status_code == 204
        # or it could give itself the rest
        refused(holder.post("/v1/keys", json={"name": "more", "scopes": ["admin"]}), 403, "key_limited")
        refused(holder.get("/v1/keys"), 403, "key_limited")
        refused(holder.delete("/v1/keys/anything"), 403, "key_limited")
        refused(holder.get("/metrics"), 403, "key_limited")


def test_a_key_for_a_model_that_is_not_there_is_refused(stack: Stack, api: httpx.Client) -> None:
    given = {"name": "typo", "scopes": ["read"], "models": [stack.model(), "chrun"]}
    problem = refused(api.post("/v1/keys", json=given), 404, "model_not_found")
    assert (location(problem), "'chrun'" in problem["detail"]) == (["models", 1], True)


@pytest.mark.parametrize(
    "body",
    [
        {},
        {"name": ""},
        {"name": "a\0"},
        {"name": "x" * 201},
        {"scopes": []},
        {"scopes": ["root"]},
        {"models": []},
        {"models": ["Not A Name"]},
        {"key": "amend_mine_secret"},
    ],
    ids=str,
)
def test_a_bad_key_is_refused(stack: Stack, api: httpx.Client, body: dict[str, Any]) -> None:
    given = {"name": "a", "scopes": ["read"], **body} if body else body
    refused(api.post("/v1/keys", json=given), 422, "request_invalid")


@pytest.mark.parametrize("text", ["amend", "amend_a_b", "amend_0123456789ab_" + "x" * 43, "é", "a b", "x" * 5000])
def test_an_invalid_key_text_is_refused(stack: Stack, text: str) -> None:
    for scheme in ("Bearer", "bearer"):
        answer = httpx.get(f"{stack.url}/v1/models", headers={"Authorization": f"{scheme} {text}".encode()})
        refused(answer, 401)
        assert answer.headers["www-authenticate"] == "Bearer"


def test_another_scheme_is_refused(stack: Stack) -> None:
    refused(httpx.get(f"{stack.url}/v1/models", auth=("admin", stack.admin_key)), 401, "key_missing")


def test_a_wrong_secret_is_refused(stack: Stack) -> None:
    wrong = stack.admin_key[:-1] + ("a" if stack.admin_key[-1] != "a" else "b")
    with stack.client(wrong) as holder:
        refused(holder.get("/v1/models"), 401, "key_unknown")


def test_an_unknown_key_cannot_be_revoked(stack: Stack, api: httpx.Client) -> None:
    refused(api.delete("/v1/keys/none"), 404, "key_not_found")
    refused(api.delete("/v1/keys/%00"), 422, "request_invalid")


def test_an_expired_key_is_refused_as_expired(stack: Stack, api: httpx.Client) -> None:
    until = (now() + timedelta(hours=1)).replace(microsecond=0)
    issued = issue(api, expires_at=until.isoformat())
    assert datetime.fromisoformat(issued["expires_at"]) == until
    with stack.client(issued["key"]) as holder:
        assert holder.get("/v1/models").status_code == 200
        with stack.database.write() as session:
            session.get_one(Key, issued["id"]).expires_at = now()
        assert soon(lambda: holder.get("/v1/models").status_code == 401, 3.0)
        refused(holder.get("/v1/models"), 401, "key_expired")
    key = shown(api, issued["id"])
    assert key is not None
    assert datetime.fromisoformat(key["expires_at"]) <= now()


def test_a_key_expires_in_utc_unless_its_time_has_a_zone(stack: Stack, api: httpx.Client) -> None:
    until = f"{now() + timedelta(days=3):%Y-%m-%dT%H:%M:%S}"
    assert issue(api, expires_at=until)["expires_at"] == f"{until}Z"


@pytest.mark.parametrize("when", ["2020-01-01T00:00:00Z", "9999-12-31T23:59:59-12:00", "0001-01-01T00:00:00+12:00"])
def test_a_key_cannot_expire_before_it_is_made_nor_in_a_hundred_years(
    stack: Stack, api: httpx.Client, when: str
) -> None:
    answer = api.post("/v1/keys", json={"name": "late", "scopes": ["read"], "expires_at": when})
    refused(answer, 422, "key_invalid" if when.startswith("2020") else "request_invalid")
