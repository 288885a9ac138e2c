"""The audit log: every action on personal data, who performed it and from where, and nothing about people."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import httpx
import pytest
from sqlalchemy import func, select, update
from sqlalchemy.exc import DatabaseError

from core.audit.entries import delete_expired
from core.audit.queries import copies_of
from core.clock import now
from core.models import catalog
from core.tables.audit import Action, AuditEntry
from core.tables.ledger import Change
from tests.core.encoders import projection
from tests.service.erasure_helpers import ask, erase_nobody, fail_erasure, somebody
from tests.service.expect import add, paged, refused, rows
from tests.stack import Stack

ROOT = Path(__file__).parents[2]
ELSEWHERE = {
    Action.VERSION_ACCEPTED: "needs a rejected version",
    Action.VERSION_DISCARDED: "needs a rejected version",
    Action.ANALYSIS_REQUESTED: "needs a worker",
    Action.ANALYSIS_READ: "needs a worker",
    Action.JOB_CANCELLED: "test_page_actions_are_recorded_with_their_actor",
    Action.BUNDLE_DOWNLOADED: "bundles write it",
    Action.SIGNED_IN: "test_page_actions_are_recorded_with_their_actor",
    Action.SIGNED_OUT: "test_page_actions_are_recorded_with_their_actor",
}
"""Actions that the history of the first test does not contain."""


def entries(api: httpx.Client, **query: Any) -> list[dict[str, Any]]:
    return list(paged(api, "/v1/audit", limit=100, **query))


@pytest.fixture
def person() -> str:
    return somebody()


@pytest.fixture
def history(stack: Stack, api: httpx.Client, person: str) -> Iterator[tuple[str, str]]:
    """The name of a model to which everything was done that can be done, and the id of an erasure."""
    name = stack.model(policy={"holdout": 0.25})
    path = f"/v1/models/{name}"
    add(api, name, [{**row, "subject": person} for row in rows(8, "secret-id-")])
    add(api, name, rows(2, "other-"), headers={"Idempotency-Key": name})
    add(api, name, rows(2, "other-"), headers={"Idempotency-Key": name})  # a repetition, which does nothing
    add(api, name, [{**row, "y": None} for row in rows(2, "late-")])
    number = stack.train(name)
    calls: list[tuple[str, str, dict[str, Any]]] = [
        ("POST", f"{path}/labels", {"json": {"labels": [{"id": "late-0", "y": 1}, {"id": "nobody", "y": 1}]}}),
        ("PUT", f"{path}/examples/other-0", {"json": {"x": [9, 9], "y": 0}}),
        ("POST", f"{path}/removals", {"json": {"ids": ["other-1", "secret-id-9"]}}),
        ("GET", f"{path}/examples", {}),
        ("GET", f"{path}/examples/other-0", {}),
        ("GET", f"{path}/examples/export", {"headers": {"Accept": "application/vnd.apache.arrow.stream"}}),
        ("POST", f"{path}/predictions", {"json": {"inputs": [[1, 2]], "ids": ["p"], "record": True}}),
        ("POST", f"{path}/predictions", {"json": {"inputs": [[1, 2]]}}),  # changes and exports nothing
        ("POST", "/v1/subjects/lookup", {"json": {"subject": person}}),
        ("POST", "/v1/subjects/export", {"json": {"subject": person}}),
        (
            "POST",
            "/v1/subjects/correct",
            {"json": {"subject": person, "model": name, "id": "secret-id-0", "x": [1, 9]}},
        ),
        ("GET", "/v1/erasures/register", {}),
        ("GET", f"{path}/versions/{number}/weights", {}),
        ("GET", f"{path}/versions/{number}/onnx", {}),
        ("GET", f"{path}/versions/{number}/coefficients", {}),
        ("POST", f"{path}/versions/{number}/promote", {}),
        ("POST", f"{path}/hold", {}),
        ("POST", f"{path}/resume", {}),
        ("PATCH", path, {"json": {"policy": {"threshold": 0.4}}}),
        ("POST", f"{path}/changes", {"json": {"regularizer": {"kind": "l2", "delta": 3.0}}}),
        ("POST", f"{path}/adaptations", {}),
    ]
    for method, to, options in calls:
        assert api.request(method, to, **options).is_success, to
    erasure = ask(api, person)["id"]
    api.post(f"/v1/erasures/{erasure}/extend", json={"reason": "complex"}).raise_for_status()
    api.post(f"/v1/erasures/{erasure}/refuse", json={"reason": "no"}).raise_for_status()
    held = ask(api, person, hold=True)["id"]
    api.post(f"/v1/erasures/{held}/approve").raise_for_status()
    api.post(f"/v1/erasures/{held}/hold").raise_for_status()
    api.post(f"/v1/erasures/{held}/withdraw").raise_for_status()
    restriction = api.post("/v1/restrictions", json={"subject": person}).raise_for_status().json()["id"]
    api.post(f"/v1/restrictions/{restriction}/lift", json={"reason": "settled"}).raise_for_status()
    api.post(f"/v1/erasures/{fail_erasure(stack, api)['id']}/retry").raise_for_status()
    api.post("/v1/erasures/replay").raise_for_status()
    imported = stack.model()
    add(api, imported, rows(4))
    api.post(f"/v1/models/{imported}/imports", json={"weights": [0.1, 0.2, 0.3]}).raise_for_status()
    gone = somebody()
    assert erase_nobody(api, gone)["state"] == "completed"
    add(api, name, [{**row, "subject": gone} for row in rows(2, "returned-")])
    for decision, id in (("accept", "returned-0"), ("discard", "returned-1")):
        api.post(f"{path}/returned/{decision}", json={"ids": [id]}).raise_for_status()
        add(api, name, [{**rows(1, "again")[0], "subject": gone}])
    yield name, erasure
    api.delete(path)


@pytest.mark.both_databases
def test_every_action_has_one_entry_without_personal_data(
    stack: Stack, api: httpx.Client, history: tuple[str, str], person: str
) -> None:
    name, erasure = history
    made = api.post("/v1/keys", json={"name": "temporary", "scopes": ["read"]}).json()["id"]
    api.delete(f"/v1/keys/{made}").raise_for_status()
    webhook = api.post("/v1/webhooks", json={"url": "https://receiver.example/"}).json()["id"]
    api.post(f"/v1/webhooks/{webhook}/test").raise_for_status()
    api.delete(f"/v1/webhooks/{webhook}").raise_for_status()
    encoder = api.post("/v1/encoders", content=projection(2, 3, seed=9)[0]).json()["digest"]
    api.delete(f"/v1/encoders/{encoder}").raise_for_status()
    api.delete(f"/v1/models/{name}", headers={"X-Request-ID": f"request-{name}"}).raise_for_status()
    found = entries(api)
    assert {entry["action"] for entry in found} >= set(Action) - ELSEWHERE.keys()
    ours = entries(api, model=name)
    added = [entry["counts"] for entry in ours if entry["action"] == "examples_added"]
    assert added[-3:] == [{"accepted": 2}, {"accepted": 2}, {"accepted": 8}]  # newest first; the repetition has none
    by_action = {entry["action"]: entry for entry in reversed(ours)}
    assert by_action["examples_removed"]["counts"] == {"removed": 1, "unknown": 1}
    assert by_action["labels_added"]["counts"] == {"accepted": 1, "unknown": 1}
    assert by_action["predictions_recorded"]["counts"] == {"examples": 1}
    assert by_action["weights_downloaded"]["version"] == 1
    assert by_action["examples_removed"]["job"]
    assert [entry["object"] for entry in found if entry["action"] == "key_created"][0] == made
    admin = {"id": stack.admin_key.split("_")[1], "name": "first admin"}
    last = ours[0]
    assert (last["action"], last["actor"]) == ("model_deleted", admin)
    assert (last["client"], last["request_id"]) == ("127.0.0.1", f"request-{name}")
    about = [entry["action"] for entry in entries(api, erasure=erasure)]
    assert about == ["erasure_refused", "erasure_extended", "erasure_requested"]
    with stack.database.read() as session:
        columns = [tuple(map(str, row)) for row in session.execute(select(*AuditEntry.__table__.columns))]
    text = json.dumps([found, columns])
    for secret in (person, "secret-id-", "late-", "other-", "complex"):
        assert secret not in text


def test_entries_are_filtered_and_paged(stack: Stack, api: httpx.Client) -> None:
    name = stack.model()
    key = stack.key("ingest", "read")
    with stack.client(key) as ingest:
        for i in range(3):
            add(ingest, name, rows(1, f"e{i}-"))
    actor = key.split("_")[1]
    found = entries(api, model=name)
    assert [entry["action"] for entry in found] == ["examples_added"] * 3 + ["model_created"]
    assert list(paged(api, "/v1/audit", limit=1, model=name)) == found
    assert entries(api, actor=actor) == found[:3]
    assert {entry["actor"]["name"] for entry in found[:3]} == {"test"}
    assert entries(api, actor=actor, since=found[1]["at"]) == found[:2]
    assert entries(api, actor=actor, until=found[1]["at"]) == found[2:3]
    assert entries(api, model=name, action="model_created") == found[3:]
    refused(api.get("/v1/audit", params={"action": "examples_aded"}), 422)
    refused(api.get("/v1/audit", params={"after": "x"}), 422, "cursor_invalid")
    refused(stack.client(stack.key("read", "erase")).get("/v1/audit"), 403, "scope_missing")
    refused(stack.client(stack.key("admin", models=[name])).get("/v1/audit"), 403, "key_limited")


@pytest.mark.both_databases
def test_entries_cannot_be_changed(stack: Stack, api: httpx.Client) -> None:
    name = stack.model()
    with pytest.raises(DatabaseError, match="cannot be changed"), stack.database.engine.begin() as connection:
        connection.execute(update(AuditEntry).where(AuditEntry.model == name).values(actor="nobody"))
    [entry] = entries(api, model=name)
    assert entry["actor"]["id"] == stack.admin_key.split("_")[1]


@pytest.mark.both_databases
def test_no_action_without_its_entry(stack: Stack, api: httpx.Client) -> None:
    """If the entry cannot be written, nothing else is."""
    name = stack.model()
    path = f"/v1/models/{name}"
    add(api, name, rows(2))
    stack.train(name)
    table, hidden = AuditEntry.__tablename__, "audit_entries_hidden"
    with stack.database.engine.begin() as connection:
        connection.exec_driver_sql(f"ALTER TABLE {table} RENAME TO {hidden}")
    try:
        for answer in (
            api.post(f"{path}/examples", json={"examples": rows(1, "fast")}),
            api.post(f"{path}/examples", json={"examples": rows(1, "kept")}, headers={"Idempotency-Key": "k"}),
            api.post(f"{path}/removals", json={"ids": ["e0"]}),
            api.get(f"{path}/versions/1/weights"),
            api.get(f"{path}/examples"),
            api.delete(path),
        ):
            assert answer.status_code >= 500
            assert "e0" not in answer.text
    finally:
        with stack.database.engine.begin() as connection:
            connection.exec_driver_sql(f"ALTER TABLE {hidden} RENAME TO {table}")
    assert [row["id"] for row in paged(api, f"{path}/examples")] == ["e0", "e1"]


def test_page_actions_are_recorded_with_their_actor(stack: Stack, api: httpx.Client) -> None:
    name = stack.model()
    add(api, name, rows(4))
    with httpx.Client(base_url=stack.url, verify=False, follow_redirects=True) as browser:
        browser.post("/sign-in", data={"key": stack.admin_key}).raise_for_status()
        page = browser.get(f"/models/{name}").raise_for_status().text
        token = re.search(r'name="token" value="([0-9a-f]+)"', page)
        assert token is not None
        form = {"token": token[1]}
        browser.post(f"/models/{name}/adapt", data=form).raise_for_status()
        job = api.get("/v1/jobs", params={"model": name}).json()["items"][0]["id"]
        browser.post(f"/models/{name}/cancel", data={**form, "job": job}).raise_for_status()
        gone = somebody()
        assert erase_nobody(api, gone)["state"] == "completed"
        add(api, name, [{**row, "subject": gone} for row in rows(2, "back")])
        assert "2 examples are about people whose data was erased" in browser.get(f"/models/{name}").text
        done = browser.post(f"/models/{name}/discard-returned", data=form).raise_for_status()
        assert "The examples were removed." in done.text
        browser.post("/sign-out", data=form).raise_for_status()
    found = [entry["action"] for entry in entries(api, model=name)]
    assert found[:4] == ["returned_discarded", "examples_added", "job_cancelled", "job_requested"]
    assert [entry["action"] for entry in api.get("/v1/audit", params={"limit": 1}).json()["items"]] == ["signed_out"]
    assert entries(api, action="signed_in")
    actor = stack.admin_key.split("_")[1]
    logged = [json.loads(line) for line in stack.log.read_text().splitlines() if line.startswith("{")]
    routes = ("/sign-in", "/models/{name}/{action}", "/sign-out")
    keys = {line["route"]: line.get("key") for line in logged if line.get("method") == "POST" and "route" in line}
    assert {route: keys[route] for route in routes} == dict.fromkeys(routes, actor)


def test_nothing_writes_to_the_database_past_the_audit_log() -> None:
    """A transaction of the service outside of the unit of work also writes an entry, or is known to need none."""
    known = {
        "service/__main__.py": "the start of the service",
        "service/http/auth.py": "the time at which a key was last used",
    }
    for file in sorted((ROOT / "service").rglob("*.py")):
        text, name = file.read_text(), str(file.relative_to(ROOT))
        if name not in known:
            assert text.count("database.write()") <= text.count("record(session") + text.count("record_result("), name


@pytest.mark.both_databases
def test_adding_examples_costs_one_more_row(stack: Stack, api: httpx.Client) -> None:
    name = stack.model()
    add(api, name, rows(1))
    with stack.database.read() as session:
        model = catalog.find(session, name, None)
        changes = session.scalar(select(func.count()).where(Change.model_id == model.id))
    assert (changes, len(entries(api, model=name, action="examples_added"))) == (1, 1)


@pytest.mark.both_databases
def test_copies_are_found_by_version_and_position(stack: Stack, api: httpx.Client) -> None:
    name = stack.model()
    path = f"/v1/models/{name}"
    arrow = {"Accept": "application/vnd.apache.arrow.stream"}
    add(api, name, rows(4))
    stack.train(name)
    api.get(f"{path}/versions/1/weights").raise_for_status()
    api.get(f"{path}/examples/export", headers=arrow).raise_for_status()
    add(api, name, rows(4, "later"))
    stack.train(name)
    api.get(f"{path}/versions/2/onnx").raise_for_status()
    api.get(f"{path}/examples/export", headers=arrow).raise_for_status()
    with stack.database.read() as session:
        model = catalog.find(session, name, None)

        def found(versions: list[int], first: int, last: int) -> list[tuple[str, int | None, int]]:
            copies = copies_of(session, model, versions, first, last)
            return [(copy.action, copy.version, copy.count) for copy in copies]

        assert found([1], 1, 4) == [("weights_downloaded", 1, 1), ("examples_exported", None, 1)]
        assert found([2], 5, 8) == [("onnx_downloaded", 2, 1), ("examples_exported", None, 1)]
        assert found([], 1, 8) == [("examples_exported", None, 2)]
        assert found([3], 9, 9) == []
    api.delete(path).raise_for_status()
    again = stack.post("/v1/models", {"name": name, "input": {"kind": "vector", "dim": 2}, "target": {"kind": "count"}})
    assert again["name"] == name
    with stack.database.read() as session:
        assert copies_of(session, catalog.find(session, name, None), [1, 2], 1, 8) == []


@pytest.mark.both_databases
def test_entries_expire(stack: Stack, api: httpx.Client) -> None:
    name = stack.model()
    kept = len(entries(api, model=name))
    assert delete_expired(stack.database, timedelta(days=1)) == 0
    assert len(entries(api, model=name)) == kept
    with stack.database.write() as session:
        long_ago = now() - timedelta(days=800)
        session.add(AuditEntry(at=long_ago, actor="k", action="model_created", model=f"{name}-old"))
    assert delete_expired(stack.database, timedelta(days=730)) == 1
    assert entries(api, model=f"{name}-old") == []
    assert len(entries(api, model=name)) == kept
