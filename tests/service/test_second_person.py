"""AMEND_ERASURE_APPROVAL=second: no path leads around the approval by another key."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from tests.service.erasure_helpers import act, ask, model_with_person, show, somebody
from tests.service.expect import refused
from tests.service.test_pages import form_token, visit
from tests.stack import Stack


@pytest.fixture(scope="module")
def strict(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    stack = Stack(tmp_path_factory.mktemp("strict"), AMEND_ERASURE_APPROVAL="second")
    try:
        yield stack.start()
    finally:
        stack.stop()


@pytest.fixture
def filer(strict: Stack) -> Iterator[httpx.Client]:
    with strict.client(strict.key("admin")) as client:
        yield client


@pytest.fixture
def approver(strict: Stack) -> Iterator[httpx.Client]:
    with strict.client(strict.key("erase")) as client:
        yield client


def file(strict: Stack, filer: httpx.Client, **more: Any) -> tuple[str, str]:
    """A person with examples, and the id of a request."""
    person = somebody()
    model_with_person(strict, filer, person)
    return person, ask(filer, person, **more)["id"]


def test_every_request_waits_for_another_key(strict: Stack, filer: httpx.Client, approver: httpx.Client) -> None:
    _, id = file(strict, filer)
    assert show(filer, id)["state"] == "held"
    refused(act(filer, id, "approve"), 409, "approval_by_filer")
    assert show(filer, id)["state"] == "held"
    assert act(approver, id, "approve").json()["state"] == "received"


def test_a_request_cannot_ask_not_to_be_held(filer: httpx.Client) -> None:
    body = {"subject": somebody(), "hold": False}
    refused(filer.post("/v1/erasures", json=body), 422, "approval_required")
    refused(filer.post("/v1/erasures/batch", json={"requests": [body]}), 422, "approval_required")
    [filed] = filer.post("/v1/erasures/batch", json={"requests": [{"subject": somebody()}]}).json()["items"]
    assert filed["state"] == "held"
    refused(act(filer, filed["id"], "approve"), 409, "approval_by_filer")


def test_filing_again_does_not_approve(strict: Stack, filer: httpx.Client, approver: httpx.Client) -> None:
    person, id = file(strict, filer)
    assert ask(approver, person)["state"] == "held"
    refused(act(filer, id, "approve"), 409, "approval_by_filer")
    assert act(approver, id, "approve").json()["state"] == "received"  # it added nothing to the request


def test_an_identifier_that_is_added_to_an_approved_request_is_approved_again(
    strict: Stack, filer: httpx.Client, approver: httpx.Client
) -> None:
    person, id = file(strict, filer)
    act(approver, id, "approve").raise_for_status()
    other = somebody()
    model_with_person(strict, filer, other)
    assert (again := ask(approver, person, subjects=[other]))["id"] == id
    assert again["state"] == "held"
    refused(act(approver, id, "approve"), 409, "approval_by_filer")
    assert act(filer, id, "approve").json()["state"] == "received"


def test_holding_and_retrying_are_no_way_around(strict: Stack, filer: httpx.Client) -> None:
    _, id = file(strict, filer)
    refused(act(filer, id, "retry"), 409, "erasure_not_failed")
    refused(act(filer, id, "hold"), 409, "erasure_not_open")
    refused(act(filer, id, "approve"), 409, "approval_by_filer")


def test_the_page_offers_no_approval_to_the_filer_and_rejects_forged_ones(
    strict: Stack, approver: httpx.Client
) -> None:
    key = strict.key("erase")
    with visit(strict, key) as officer:
        token = form_token(officer.get("/privacy/file"))
        person = somebody()
        page = officer.post("/privacy/file", data={"token": token, "subject": person})
        id = page.url.path.rpartition("/")[2]
        assert "Somebody else has to approve it" in page.text
        assert f"/privacy/{id}/approve" not in page.text
        forged = officer.post(f"/privacy/{id}/approve", data={"token": token})
        assert forged.status_code == 409
        assert "requires a second person" in forged.text
        assert show(approver, id)["state"] == "held"
        several = officer.post("/privacy/file/several", data={"token": token, "list": somebody()})
        assert "held" in several.text
        assert officer.post(f"/privacy/{id}/approve").status_code == 403  # no token
    assert act(approver, id, "approve").json()["state"] == "completed"
