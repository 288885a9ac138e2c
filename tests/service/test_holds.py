"""A held model: automatic work stops until `resume`, and every view shows the hold."""

from __future__ import annotations

from typing import Any

import httpx
import pytest

from tests.service.expect import add, listed, refused, rows
from tests.stack import Stack

QUIET = {"adapt": {"after_changes": None, "every": None}, "retrain": {"every": None}}


def trained(stack: Stack, api: httpx.Client, versions: int = 2, policy: dict[str, Any] | None = None) -> str:
    """A model with some versions, each of two more examples than the one before."""
    name = stack.model(policy=policy or QUIET)
    add(api, name, rows(6))
    for i in range(versions):
        assert stack.train(name) == i + 1
        add(api, name, rows(2, f"v{i}-"))
    return name


def promote(api: httpx.Client, name: str, number: int) -> Any:
    return api.post(f"/v1/models/{name}/versions/{number}/promote").raise_for_status().json()


def held(api: httpx.Client, name: str) -> Any:
    return api.get(f"/v1/models/{name}").raise_for_status().json()["held"]


def jobs(api: httpx.Client, name: str) -> list[tuple[str, str]]:
    return [(job["kind"], job["state"]) for job in api.get("/v1/jobs", params={"model": name}).json()["items"]]


def test_a_rollback_holds_the_model_everywhere(stack: Stack, api: httpx.Client) -> None:
    name = trained(stack, api)
    assert held(api, name) is None
    answer = promote(api, name, 1)
    since = answer["held"].pop("since")
    assert since.endswith("Z")
    assert answer["held"] == {"reason": "version 1 was promoted by hand", "by": stack.admin_key.split("_")[1]}
    assert held(api, name) == {"since": since, **answer["held"]}
    [shown] = [m["held"] for m in api.get("/v1/models?limit=1000").json()["items"] if m["name"] == name]
    assert shown == held(api, name)
    stack.wait_until(lambda: f'amend_model_held{{model="{name}"}} 1.0' in api.get("/metrics").text)


def test_promoting_a_newer_version_does_not_hold_the_model(stack: Stack, api: httpx.Client) -> None:
    name = trained(stack, api)
    assert promote(api, name, 2)["held"] is None
    assert held(api, name) is None


def test_only_resume_ends_a_hold(stack: Stack, api: httpx.Client) -> None:
    """Promoting the newest version again undoes the rollback, not the hold: whoever rolled back may still be at it."""
    name = trained(stack, api)
    first = promote(api, name, 1)["held"]
    assert promote(api, name, 2)["held"] == first
    assert api.post(f"/v1/models/{name}/hold").json()["held"] == first
    answer = api.post(f"/v1/models/{name}/resume")
    assert (answer.status_code, answer.json()["held"], answer.json()["job"]) == (200, None, None)
    assert held(api, name) is None
    assert api.post(f"/v1/models/{name}/resume").json()["job"] is None
    stack.wait_until(lambda: f'amend_model_held{{model="{name}"}} 0.0' in api.get("/metrics").text)


def test_a_model_is_held_by_hand(stack: Stack, api: httpx.Client) -> None:
    name = trained(stack, api)
    answer = api.post(f"/v1/models/{name}/hold")
    assert (answer.status_code, answer.json()["held"]["reason"]) == (200, "held manually")
    assert (answer.json()["name"], answer.json()["champion"]) == (name, 2)


def test_the_job_of_a_removal_on_a_held_model_starts_on_resume(stack: Stack, api: httpx.Client) -> None:
    name = trained(stack, api)
    promote(api, name, 1)
    removal = api.post(f"/v1/models/{name}/removals", json={"ids": ["e0", "e1"]}).raise_for_status().json()
    assert (removal["removed"], removal["job"]) == (2, None)
    assert {"e0", "e1"}.isdisjoint(example["id"] for example in listed(api, name))
    assert jobs(api, name) == []
    job = api.post(f"/v1/models/{name}/resume").json()["job"]
    assert jobs(api, name) == [("adapt", "queued")]
    assert api.get(f"/v1/models/{name}/removals/{removal['id']}").json()["job"] == job
    found = api.get(f"/v1/jobs/{job}").json()
    assert (found["from_position"], found["to_position"]) == (6, 12)


def test_after_a_rollback_to_before_a_removal_resume_forgets_again(stack: Stack, api: httpx.Client) -> None:
    name = trained(stack, api, 1)
    api.post(f"/v1/models/{name}/removals", json={"ids": ["e0"]}).raise_for_status()
    api.post(f"/v1/jobs/{api.get('/v1/jobs', params={'model': name}).json()['items'][0]['id']}/cancel")
    stack.train(name)
    promote(api, name, 1)
    assert jobs(api, name) == [("adapt", "cancelled")]
    assert api.post(f"/v1/models/{name}/resume").json()["job"] is not None


def test_a_change_of_a_held_model_waits_for_resume(stack: Stack, api: httpx.Client) -> None:
    name = trained(stack, api)
    api.post(f"/v1/models/{name}/hold").raise_for_status()
    change = {"regularizer": {"kind": "l2", "delta": 7.0}}
    assert api.post(f"/v1/models/{name}/changes", json=change).json() == {"position": 11, "job": None}
    assert jobs(api, name) == []
    assert api.post(f"/v1/models/{name}/resume").json()["job"] is not None


@pytest.mark.parametrize(("after_changes", "due"), [(2, True), (100, False)])
def test_resume_starts_work_that_is_due(stack: Stack, api: httpx.Client, after_changes: int, due: bool) -> None:
    name = trained(stack, api, policy={"adapt": {"after_changes": after_changes, "every": None}})
    promote(api, name, 1)
    assert (api.post(f"/v1/models/{name}/resume").json()["job"] is not None) == due


@pytest.mark.parametrize("what", ["adaptations", "retrains"])
def test_requested_jobs_run_while_the_model_is_held(stack: Stack, api: httpx.Client, what: str) -> None:
    name = trained(stack, api)
    promote(api, name, 1)
    assert api.post(f"/v1/models/{name}/{what}").status_code == 202


def test_a_repeated_resume_is_answered_as_the_first_time(stack: Stack, api: httpx.Client) -> None:
    name = trained(stack, api, policy={"adapt": {"after_changes": 1, "every": None}})
    promote(api, name, 1)
    answers = [api.post(f"/v1/models/{name}/resume", headers={"Idempotency-Key": name}).json() for _ in range(2)]
    assert answers[0] == answers[1]
    assert answers[0]["job"] is not None


@pytest.mark.parametrize("what", ["hold", "resume"])
def test_an_unknown_model_is_neither_held_nor_resumed(stack: Stack, api: httpx.Client, what: str) -> None:
    refused(api.post(f"/v1/models/none/{what}"), 404, "model_not_found")
    with stack.client(stack.key("read", "ingest")) as other:
        refused(other.post(f"/v1/models/{trained(stack, api)}/{what}"), 403, "scope_missing")
