"""Receipts as JSON and as a page."""

from __future__ import annotations

from typing import Any

import httpx
import pytest

from core.erasure import queries, receipt_text, state_changes
from core.erasure.receipt_content import ModelReport, model_from
from core.models import catalog
from core.tables.erasures import Part
from service.erasures import printable_receipts
from tests.service.erasure_helpers import ask, erase_nobody, open_erasure, somebody
from tests.service.expect import add, refused, rows
from tests.stack import Stack

HTML = {"Accept": "text/html,application/xhtml+xml;q=0.9,*/*;q=0.8"}
FIGURES: dict[str, Any] = {
    "method": "adapted",
    "words": "adapted; within 0.00123 of a retrain without this data (0.04% of it)",
    "version": 2,
    "commitment": "ab" * 32,
    "tolerance": 0.01,
    "certificate": {
        "kind": "bound",
        "passes": 1,
        "bound": 0.00123,
        "relative": 0.0004,
        "prediction_bound": 0.0007,
        "scope": "model",
    },
    "audit": {"before": 0.61, "after": 0.5},
    "deleted": {"examples": 2, "versions": 1},
    "checked": {"examples by position": 0, "memory of the champion": 0},
    "database": "SQLite: deleted rows overwritten; write-ahead log truncated",
    "kept_until": None,
}


def chain(api: httpx.Client) -> dict[str, Any]:
    answer: dict[str, Any] = api.get("/v1/receipts/verify").raise_for_status().json()
    return answer


def test_an_approved_request_that_matches_nothing_gets_a_receipt(stack: Stack, api: httpx.Client) -> None:
    erasure = erase_nobody(api)
    assert (erasure["state"], erasure["models"], erasure["overdue"]) == ("completed", [], False)
    assert erasure["receipt"] == f"/v1/erasures/{erasure['id']}/receipt"
    receipt = api.get(erasure["receipt"]).json()
    assert (receipt["erasure"], receipt["found"], receipt["models"]) == (erasure["id"], 0, [])
    assert receipt["statement"].startswith("No example was found under")


def test_there_is_no_receipt_before_the_end(stack: Stack, api: httpx.Client) -> None:
    erasure = open_erasure(stack, api)
    assert erasure["receipt"] is None
    refused(api.get(f"/v1/erasures/{erasure['id']}/receipt"), 404, "receipt_not_found")
    refused(api.get(f"/v1/erasures/{erasure['id']}/receipt", headers=HTML), 404, "receipt_not_found")


def test_a_receipt_is_readable_and_contains_no_personal_data(stack: Stack, api: httpx.Client) -> None:
    person, name = somebody(), stack.model()
    add(api, name, [{**row, "subject": person} for row in rows(2, "private-")])
    id = ask(api, person, reason="a private reason")["id"]
    with stack.database.write() as session:  # what a worker would note
        model = catalog.find(session, name, None, lock=True)
        part = session.get_one(Part, (id, model.id))
        part.report = FIGURES
        state_changes.begin_purge(part)
        state_changes.conclude(session, queries.find(session, id))
        state_changes.complete_part(session, part, queries.find(session, id))
    as_json, as_page = (api.get(f"/v1/erasures/{id}/receipt", headers=headers) for headers in ({}, HTML))
    assert as_json.json()["models"] == [{"model": name, "examples": 2, **FIGURES}]
    assert as_page.headers["content-type"] == "text/html; charset=utf-8"
    for text in ("2 examples under the identifier of this request", "0.00123", name, as_json.json()["sha256"]):
        assert text in as_page.text
    for answer in (as_json, as_page):
        for word in (person, "private"):
            assert word not in answer.text
    assert chain(api)["valid"]


def test_the_page_escapes_whatever_it_shows() -> None:
    evil = "<script>alert('&\"')</script>"
    figures = {**FIGURES, "words": evil, "commitment": evil, "database": evil, "checked": {evil: 0}}
    body = dict.fromkeys(("statement", "erasure", "sha256", "key_id", "leaf"), evil)
    times = dict.fromkeys(("received_at", "due_at", "completed_at"), evil)
    shown = printable_receipts.render_receipt(
        {**body, **times, "late": False, "number": 1, "found": 1, "models": [{**figures, "model": evil, "examples": 1}]}
    )
    assert "<script" not in shown
    assert "&lt;script" in shown


MEASURED = {
    "kind": "measured",
    "bound": None,
    "gradient_norm": None,
    "audit": {
        "unseen_loss": 0.2,
        "unseen_loss_before": 0.21,
        "removed": 2,
        "removed_loss": 0.4,
        "forgotten_label_rate": 0.5,
    },
}
SHOWN = {
    "a bound": FIGURES,
    "a network": {**FIGURES, "certificate": MEASURED, "audit": None},
    "retrained": {"method": "retrained", "words": "retrained without this data", "version": 3, "commitment": "cd" * 32},
    "no certificate": {**FIGURES, "certificate": None},
    "withdrawn": {"method": "withdrawn", "words": "nothing is left to predict from"},
    "kept": {**FIGURES, "kept_until": "2026-04-01T00:00:00+00:00"},
    "nothing": {},
}


def render(model: dict[str, Any]) -> str:
    """The page of a receipt of one model."""
    times = dict.fromkeys(("received_at", "due_at", "completed_at"), "2026-03-01T12:30:15.123456+00:00")
    body = {"number": 1, "late": False, "erasure": "e", "found": 2, "statement": "Done.", "models": [model]}
    return printable_receipts.render_receipt({**body, **times, "leaf": 1, "key_id": "0" * 16, "sha256": "ef" * 32})


def model_of(figures: dict[str, Any]) -> ModelReport:
    return model_from({"model": "churn", "examples": 2, "method": "adapted", **figures})


@pytest.mark.parametrize("figures", SHOWN.values(), ids=SHOWN.keys())
def test_the_page_shows_every_way_to_forget(figures: dict[str, Any]) -> None:
    shown = render({"model": "churn", "examples": 2, **figures})
    assert "Model churn" in shown
    assert "None" not in shown


def test_an_audit_of_a_few_examples_is_not_on_the_page() -> None:
    for examples, shown in ((9, False), (10, True)):
        page = render({"model": "churn", "examples": examples, **FIGURES})
        assert ("0.61 before" in page) is shown
        assert ("looks more familiar" in page) is shown


def test_a_tiny_fraction_is_not_shown_as_zero() -> None:
    certificate = {"kind": "bound", "bound": 1e-8, "relative": 2e-9}
    told = receipt_text.describe_nearness(model_of({"certificate": certificate, "tolerance": 0.01}))["Bound"]
    assert "less than 0.001 % of their length (tolerated: 1 %)" in told


def test_the_receipt_of_a_network_shows_measurements_and_no_bound() -> None:
    network = model_of({"certificate": MEASURED})
    shown = receipt_text.describe_nearness(network)
    assert "0.2 on examples that it was not trained on" in shown["Measured"]
    assert "50.0% are still predicted" in shown["Forgotten"]
    assert "bound" not in str(shown).lower()
    assert not receipt_text.lacks_measurement(network)
