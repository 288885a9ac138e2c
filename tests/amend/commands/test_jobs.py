"""Waiting for a job: until it has ended, and failing if it does."""

from __future__ import annotations

import json

import pytest

from tests.amend.commands.responses import SHOWN, job
from tests.amend.conftest import StandIn


@pytest.mark.parametrize(("command", "resource"), [("adapt", "adaptations"), ("retrain", "retrains")])
def test_wait_follows_the_job_to_its_end(command: str, resource: str, stand_in: StandIn) -> None:
    done = job("succeeded", progress=1.0, version=7)
    stand_in.answer(job("queued"), job("running", message="second pass"), done)
    result = stand_in.run("models", command, "churn", "--wait", "--json")
    assert result.exit_code == 0
    assert json.loads(result.stdout) == done
    paths = [asked.path for asked in stand_in.asked]
    assert paths == [f"/v1/models/churn/{resource}", "/v1/jobs/j1?wait=1", "/v1/jobs/j1?wait=1"]


def test_without_wait_the_job_is_shown_at_once(stand_in: StandIn) -> None:
    stand_in.answer(job("queued"), status=202)
    result = stand_in.run("models", "adapt", "churn")
    assert result.exit_code == 0
    assert "j1" in result.stdout
    assert len(stand_in.asked) == 1


def test_a_failed_job_fails_the_command_with_its_reason(stand_in: StandIn) -> None:
    stand_in.answer(job("failed", error={"code": "diverged", "detail": "the loss is not finite"}))
    result = stand_in.run("jobs", "wait", "j1")
    assert result.exit_code == 1
    assert "amend: Job j1 failed: diverged: the loss is not finite\n" in result.stderr


def test_a_cancelled_job_fails_the_command(stand_in: StandIn) -> None:
    stand_in.answer(job("cancelled", error=None))
    assert stand_in.run("jobs", "wait", "j1").exit_code == 1


def test_waiting_outlasts_a_restart_of_the_service(stand_in: StandIn) -> None:
    stand_in.answers = [(200, job("running")), (503, b""), (502, b""), (200, job("succeeded"))]
    assert stand_in.run("jobs", "wait", "j1").exit_code == 0


def test_list_passes_the_filters_on(stand_in: StandIn) -> None:
    stand_in.answer({"items": [job("failed")], "next": None})
    result = stand_in.run("jobs", "list", "--model", "churn", "--state", "failed")
    assert stand_in.asked[0].path == "/v1/jobs?model=churn&state=failed"
    assert result.stdout.splitlines()[1].split() == ["j1", "churn", "adapt", "failed", "40%", "3", "9", "-", *SHOWN]


def test_cancel_sends_a_request(stand_in: StandIn) -> None:
    stand_in.answer(job("cancelled"))
    assert stand_in.run("jobs", "cancel", "j1").exit_code == 0
    assert (stand_in.asked[0].method, stand_in.asked[0].path) == ("POST", "/v1/jobs/j1/cancel")
