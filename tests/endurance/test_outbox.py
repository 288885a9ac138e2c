"""Several processes send what is in the outbox at the same time: no message is lost between them."""

from __future__ import annotations

import httpx
import pytest
from sqlalchemy import select

from core.jobs import due_jobs, outbox
from core.tables.jobs import Job, Outbox
from tests.stack import Stack

pytestmark = pytest.mark.timing


def new_job(stack: Stack, api: httpx.Client) -> str:
    name = stack.model()
    rows = [{"id": f"{i}", "x": [i, 1], "y": i % 2, "split": "train"} for i in range(4)]
    api.post(f"/v1/models/{name}/examples", json={"examples": rows}).raise_for_status()
    job: str = api.post(f"/v1/models/{name}/adaptations").raise_for_status().json()["id"]
    return job


def test_a_message_enqueued_while_two_processes_send_is_sent(stack: Stack, api: httpx.Client) -> None:
    sent: list[str] = []
    first, later = new_job(stack, api), ""

    def slowly(job_id: str, _queue: str) -> None:
        nonlocal later
        sent.append(job_id)
        if job_id == first:  # meanwhile another process sends the same, and a new job comes
            outbox.flush(stack.database, lambda job_id, queue: sent.append(job_id))
            later = new_job(stack, api)

    outbox.flush(stack.database, slowly)
    outbox.flush(stack.database, lambda job_id, queue: sent.append(job_id))
    assert {first, later} <= set(sent)


def test_a_job_whose_message_was_never_sent_is_sent(stack: Stack, api: httpx.Client) -> None:
    job, sent = new_job(stack, api), []
    with stack.database.write() as session:
        for row in session.scalars(select(Outbox).where(Outbox.job_id == job)):
            session.delete(row)
    with stack.database.read() as session:
        assert session.get_one(Job, job).sent_at is None
    due_jobs.reconcile(stack.database, lambda job_id, queue: sent.append(job_id), 30)
    assert job in sent
