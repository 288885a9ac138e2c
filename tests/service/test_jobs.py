"""Jobs: start, reuse, watch, cancel."""

from __future__ import annotations

import threading
import time
import uuid
from typing import Any

import httpx
import pytest
from sqlalchemy import delete

from core.clock import now
from core.tables.jobs import Job, JobState, Outbox
from tests.service.expect import add, paged, refused, rows
from tests.stack import Stack


def ready(stack: Stack, api: httpx.Client) -> str:
    """A model with something to train on."""
    name = stack.model()
    add(api, name, rows(6))
    return name


def ask(api: httpx.Client, name: str, what: str = "adaptations") -> dict[str, Any]:
    answer = api.post(f"/v1/models/{name}/{what}")
    assert answer.status_code == 202, answer.text
    job: dict[str, Any] = answer.json()
    return job


def set_job(stack: Stack, id_: str, **values: Any) -> None:
    """Do to a job what a worker would."""
    with stack.database.write() as session:
        job = session.get_one(Job, id_)
        for name, value in values.items():
            setattr(job, name, value)


def test_a_new_job_is_queued_and_returned_completely(stack: Stack, api: httpx.Client) -> None:
    name = ready(stack, api)
    job = ask(api, name)
    expected = {
        "id": job["id"],
        "model": name,
        "kind": "adapt",
        "state": "queued",
        "progress": 0.0,
        "message": "Waiting for a worker",
        "attempts": 0,
        "error": None,
        "from_position": 0,
        "to_position": 6,
        "version": None,
        "created_at": job["created_at"],
        "started_at": None,
        "finished_at": None,
    }
    assert job == expected == api.get(f"/v1/jobs/{job['id']}").json()


def test_an_adaptation_starts_at_the_champion_and_a_retrain_at_the_beginning(stack: Stack, api: httpx.Client) -> None:
    name = ready(stack, api)
    stack.train(name)
    add(api, name, rows(2, "f"))
    adapt, retrain = ask(api, name), ask(api, name, "retrains")
    assert (adapt["kind"], adapt["from_position"], adapt["to_position"]) == ("adapt", 6, 8)
    assert (retrain["kind"], retrain["from_position"], retrain["to_position"]) == ("retrain", 0, 8)


def test_a_queued_job_is_reused_up_to_the_new_head(stack: Stack, api: httpx.Client) -> None:
    name = ready(stack, api)
    first = ask(api, name)
    add(api, name, rows(2, "f"))
    assert ask(api, name) == {**first, "to_position": 8}


def test_a_running_job_is_not_reused(stack: Stack, api: httpx.Client) -> None:
    name = ready(stack, api)
    first = ask(api, name)
    set_job(stack, first["id"], state=JobState.RUNNING)
    assert ask(api, name)["id"] != first["id"]


@pytest.mark.parametrize("what", ["adaptations", "retrains"])
def test_a_model_without_examples_has_nothing_to_train_on(stack: Stack, api: httpx.Client, what: str) -> None:
    name = stack.model()
    add(api, name, [{"id": "a", "x": [1, 2], "y": 1, "split": "holdout"}])
    refused(api.post(f"/v1/models/{name}/{what}"), 409, "nothing_to_train_on")


@pytest.mark.timing
def test_a_long_poll_ends_when_the_job_ends(stack: Stack, api: httpx.Client) -> None:
    job = ask(api, ready(stack, api))["id"]
    worker = threading.Timer(0.3, set_job, (stack, job), {"state": JobState.SUCCEEDED, "finished_at": now()})
    worker.start()
    started = time.monotonic()
    answer = api.get(f"/v1/jobs/{job}", params={"wait": 30}).json()
    worker.join()
    assert answer["state"] == "succeeded"
    assert 0.2 < time.monotonic() - started < 5


@pytest.mark.timing
def test_a_long_poll_ends_after_its_time(stack: Stack, api: httpx.Client) -> None:
    job = ask(api, ready(stack, api))["id"]
    started = time.monotonic()
    assert api.get(f"/v1/jobs/{job}", params={"wait": 0.4}).json()["state"] == "queued"
    assert 0.4 <= time.monotonic() - started < 5


@pytest.mark.timing
def test_a_long_poll_is_never_longer_than_the_operator_allows(small: Stack) -> None:
    with small.client() as api:
        name = small.model()
        add(api, name, rows(3))
        started = time.monotonic()
        api.get(f"/v1/jobs/{ask(api, name)['id']}", params={"wait": 3600}).raise_for_status()
        assert time.monotonic() - started < 5


@pytest.mark.parametrize("wait", ["-1", "3601", "nan", "inf", "x"])
def test_a_bad_wait_is_refused(stack: Stack, api: httpx.Client, wait: str) -> None:
    refused(api.get(f"/v1/jobs/none?wait={wait}"), 422, "request_invalid")


def test_a_failed_job_has_a_reason(stack: Stack, api: httpx.Client) -> None:
    job = ask(api, ready(stack, api))["id"]
    error = {"code": "diverged", "detail": "the loss is not finite"}
    set_job(stack, job, state=JobState.FAILED, error=error, attempts=3, progress=0.4, started_at=now())
    shown = api.get(f"/v1/jobs/{job}").json()
    assert (shown["state"], shown["error"], shown["attempts"], shown["progress"]) == ("failed", error, 3, 0.4)
    assert shown["started_at"].endswith("Z")


def test_a_queued_job_is_cancelled_at_once(stack: Stack, api: httpx.Client) -> None:
    name = ready(stack, api)
    job = ask(api, name)["id"]
    cancelled = api.post(f"/v1/jobs/{job}/cancel")
    assert cancelled.status_code == 200
    assert cancelled.json()["state"] == "cancelled"
    assert cancelled.json()["finished_at"] is not None
    assert ask(api, name)["id"] != job


def test_a_running_job_is_asked_to_stop(stack: Stack, api: httpx.Client) -> None:
    job = ask(api, ready(stack, api))["id"]
    set_job(stack, job, state=JobState.RUNNING, lease_owner="somebody")
    assert api.post(f"/v1/jobs/{job}/cancel").json()["state"] == "running"
    with stack.database.read() as session:
        assert session.get_one(Job, job).cancel_requested


@pytest.mark.parametrize("state", [JobState.SUCCEEDED, JobState.FAILED, JobState.CANCELLED])
def test_a_job_that_has_ended_cannot_be_cancelled(stack: Stack, api: httpx.Client, state: JobState) -> None:
    job = ask(api, ready(stack, api))["id"]
    set_job(stack, job, state=state)
    refused(api.post(f"/v1/jobs/{job}/cancel"), 409, "job_ended")


def test_an_unknown_job_is_not_found(stack: Stack, api: httpx.Client) -> None:
    for id_ in ("none", "%00", "a" * 36):
        refused(api.get(f"/v1/jobs/{id_}"), 404, "job_not_found")
        refused(api.post(f"/v1/jobs/{id_}/cancel"), 404, "job_not_found")


def test_a_job_is_found_by_a_prefix_of_its_id(stack: Stack, api: httpx.Client) -> None:
    name, other = ready(stack, api), ready(stack, api)
    ids = {model: ask(api, model)["id"] for model in (name, other)}
    begin = uuid.uuid4().hex[:8]
    with stack.database.write() as session:
        for i, (model, id_) in enumerate(ids.items()):
            job = session.get_one(Job, id_)
            session.execute(delete(Outbox).where(Outbox.job_id == id_))
            job.id = ids[model] = f"{begin}-{i}{id_[10:]}"
    for short in (begin[:6], begin, f"{begin}-"):
        refused(api.get(f"/v1/jobs/{short}"), 409, "id_ambiguous")
        refused(api.post(f"/v1/jobs/{short}/cancel"), 409, "id_ambiguous")
    assert api.get(f"/v1/jobs/{begin}-0", params={"wait": 0.1}).json()["id"] == ids[name]
    refused(api.get(f"/v1/jobs/{begin[:5]}"), 404, "job_not_found")
    refused(api.get(f"/v1/jobs/{begin[:5]}%25"), 404, "job_not_found")
    refused(api.get(f"/v1/jobs?after={begin}-0"), 422, "cursor_invalid")
    with stack.client(stack.key("read", models=[name])) as own:
        assert own.get(f"/v1/jobs/{begin}").json()["id"] == ids[name]
    assert api.post(f"/v1/jobs/{begin}-1/cancel").json()["id"] == ids[other]


def test_jobs_are_listed_newest_first_in_pages(stack: Stack, api: httpx.Client) -> None:
    name = ready(stack, api)
    ids = []
    for _ in range(5):
        ids.append(ask(api, name)["id"])
        set_job(stack, ids[-1], state=JobState.SUCCEEDED)
    assert [job["id"] for job in paged(api, "/v1/jobs", limit=2, model=name)] == ids[::-1]


def test_jobs_are_listed_by_model_state_and_kind(stack: Stack, api: httpx.Client) -> None:
    name, other = ready(stack, api), ready(stack, api)
    adapt, retrain, foreign = ask(api, name), ask(api, name, "retrains"), ask(api, other)
    set_job(stack, adapt["id"], state=JobState.RUNNING)

    def ids(**query: str) -> set[str]:
        return {job["id"] for job in paged(api, "/v1/jobs", limit=1000, **query)}

    assert ids(model=name) == {adapt["id"], retrain["id"]}
    assert ids(model=name, state="running") == {adapt["id"]}
    assert ids(model=name, kind="retrain") == {retrain["id"]}
    assert ids(model=name, kind="erase") == set()
    assert {adapt["id"], retrain["id"], foreign["id"]} <= ids()


def test_a_bad_filter_is_refused(stack: Stack, api: httpx.Client) -> None:
    refused(api.get("/v1/jobs?model=none-such"), 404, "model_not_found")
    refused(api.get("/v1/jobs?model=%00"), 404, "model_not_found")
    refused(api.get("/v1/jobs?state=done"), 422, "request_invalid")
    refused(api.get("/v1/jobs?kind=train"), 422, "request_invalid")
    refused(api.get("/v1/jobs?after=none"), 422, "cursor_invalid")
    refused(api.get("/v1/jobs?after=%00"), 422, "cursor_invalid")


def test_a_job_carries_the_id_of_its_request(stack: Stack, api: httpx.Client) -> None:
    answer = api.post(f"/v1/models/{ready(stack, api)}/adaptations", headers={"X-Request-ID": "my-request.1"})
    assert answer.headers["x-request-id"] == "my-request.1"
    with stack.database.read() as session:
        assert session.get_one(Job, answer.json()["id"]).request_id == "my-request.1"
