"""Receipts as JSON, as a page, and as a hash chain that reveals every alteration."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from core.erasure import queries, receipt_text, receipts, states
from core.erasure.report import ModelReport, model_from
from core.models import catalog
from core.tables.erasures import Part, Receipt
from core.versions.store import Store
from service.erasures import documents
from tests.service.erasure_helpers import ask, open_erasure, somebody
from tests.service.expect import add, refused, rows
from tests.stack import Stack

HTML = {"Accept": "text/html,application/xhtml+xml;q=0.9,*/*;q=0.8"}
FIGURES: dict[str, Any] = {
    "method": "adapted",
    "words": "adapted; within 0.00123 of a retrain without this data (0.04% of it)",
    "version": 2,
    "sha256": "ab" * 32,
    "tolerance": 0.01,
    "certificate": {"kind": "bound", "passes": 1, "bound": 0.00123, "relative": 0.0004, "prediction_bound": 0.0007},
    "audit": {"before": 0.61, "after": 0.5},
    "deleted": {"examples": 2, "versions": 1},
    "checked": {"examples by position": 0, "memory of the champion": 0},
    "database": "SQLite: deleted rows overwritten; write-ahead log truncated",
    "kept_until": None,
}


def erase_nobody(api: httpx.Client) -> dict[str, Any]:
    """An erasure of a person whom nobody knows."""
    return ask(api, somebody())


def chain(api: httpx.Client) -> dict[str, Any]:
    answer: dict[str, Any] = api.get("/v1/receipts/verify").raise_for_status().json()
    return answer


def test_an_unknown_person_gets_a_receipt_at_once(stack: Stack, api: httpx.Client) -> None:
    erasure = erase_nobody(api)
    assert (erasure["state"], erasure["models"], erasure["overdue"]) == ("completed", [], False)
    assert erasure["receipt"] == f"/v1/erasures/{erasure['id']}/receipt"
    receipt = api.get(erasure["receipt"]).json()
    assert (receipt["erasure"], receipt["found"], receipt["models"]) == (erasure["id"], 0, [])
    assert receipt["statement"] == "No model holds or has learnt from any example about this person."


def test_there_is_no_receipt_before_the_end(stack: Stack, api: httpx.Client) -> None:
    erasure = open_erasure(stack, api)
    assert erasure["receipt"] is None
    refused(api.get(f"/v1/erasures/{erasure['id']}/receipt"), 404, "receipt_not_found")
    refused(api.get(f"/v1/erasures/{erasure['id']}/receipt", headers=HTML), 404, "receipt_not_found")


def test_a_receipt_can_be_read_and_names_nobody(stack: Stack, api: httpx.Client) -> None:
    person, name = somebody(), stack.model()
    add(api, name, [{**row, "subject": person} for row in rows(2, "private-")])
    id = ask(api, person, reason="a private reason")["id"]
    with stack.database.write() as session:  # what a worker would note
        model = catalog.find(session, name, None, lock=True)
        part = session.get_one(Part, (id, model.id))
        part.report = FIGURES
        states.begin_purge(part)
        states.conclude(session, queries.find(session, id))
        states.complete_part(session, part, queries.find(session, id))
    as_json, as_page = (api.get(f"/v1/erasures/{id}/receipt", headers=headers) for headers in ({}, HTML))
    assert as_json.json()["models"] == [{"model": name, "examples": 2, **FIGURES}]
    assert as_page.headers["content-type"] == "text/html; charset=utf-8"
    for text in ("2 examples about this person", "0.00123", name, as_json.json()["sha256"]):
        assert text in as_page.text
    for answer in (as_json, as_page):
        for word in (person, "private"):
            assert word not in answer.text
    assert chain(api)["valid"]


def test_the_page_escapes_whatever_it_shows() -> None:
    evil = "<script>alert('&\"')</script>"
    figures = {**FIGURES, "words": evil, "sha256": evil, "database": evil, "checked": {evil: 0}}
    body = dict.fromkeys(("statement", "erasure", "sha256", "previous"), evil)
    times = dict.fromkeys(("received_at", "due_at", "completed_at"), evil)
    shown = documents.render_receipt(
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
    "retrained": {"method": "retrained", "words": "retrained without this data", "version": 3, "sha256": "cd" * 32},
    "no certificate": {**FIGURES, "certificate": None},
    "withdrawn": {"method": "withdrawn", "words": "nothing is left to predict from"},
    "kept": {**FIGURES, "kept_until": "2026-04-01T00:00:00+00:00"},
    "nothing": {},
}


def render(model: dict[str, Any]) -> str:
    """The page of a receipt of one model."""
    times = dict.fromkeys(("received_at", "due_at", "completed_at"), "2026-03-01T12:30:15.123456+00:00")
    body = {"number": 1, "late": False, "erasure": "e", "found": 2, "statement": "Done.", "models": [model]}
    return documents.render_receipt({**body, **times, "previous": "0" * 64, "sha256": "ef" * 32})


def model_of(figures: dict[str, Any]) -> ModelReport:
    return model_from({"model": "churn", "examples": 2, "method": "adapted", **figures})


@pytest.mark.parametrize("figures", SHOWN.values(), ids=SHOWN.keys())
def test_the_page_shows_every_way_to_forget(figures: dict[str, Any]) -> None:
    shown = render({"model": "churn", "examples": 2, **figures})
    assert "Model churn" in shown
    assert "None" not in shown


def test_an_audit_of_a_few_examples_is_not_on_the_page() -> None:
    for examples, shown in ((9, False), (10, True)):
        model = {"model": "churn", "examples": examples, **FIGURES}
        assert ("0.61 before" in render(model)) is shown
        assert ("Audit" in receipt_text.select_glossary([model_from(model)])) is shown


def test_a_tiny_fraction_is_not_shown_as_zero() -> None:
    certificate = {"kind": "bound", "bound": 1e-8, "relative": 2e-9}
    told = receipt_text.describe_nearness(model_of({"certificate": certificate, "tolerance": 0.01}))["Bound"]
    assert "less than 0.001 % of their length (tolerated: 1 %)" in told


def test_the_receipt_of_a_network_shows_measurements_and_no_bound() -> None:
    network = model_of({"certificate": MEASURED})
    shown = receipt_text.describe_nearness(network)
    assert "0.2 on examples never seen" in shown["Measured"]
    assert "50.0% are still predicted" in shown["Forgotten"]
    assert "bound" not in str(shown).lower()
    whole = receipt_text.select_glossary([network])
    assert "Measured" in whole
    assert "bound" not in str(whole).lower()


def test_an_untouched_chain_is_valid(stack: Stack, api: httpx.Client) -> None:
    before = chain(api)["receipts"]
    last = api.get(erase_nobody(api)["receipt"]).json()
    assert chain(api) == {"valid": True, "receipts": before + 1, "last": last["sha256"], "flaws": []}
    assert api.get(erase_nobody(api)["receipt"]).json()["previous"] == last["sha256"]


@contextmanager
def change_receipts(stack: Stack, *numbers: int) -> Iterator[dict[int, dict[str, Any]]]:
    """Columns of some receipts to be changed; a receipt that is taken out is deleted. All is put back at the end."""
    names = [column.key for column in Receipt.__table__.columns]

    def write(values: dict[int, dict[str, Any]]) -> None:
        with stack.database.write() as session:
            for number in numbers:
                if row := session.get(Receipt, number):
                    session.delete(row)
            session.flush()
            session.add_all(Receipt(**row) for row in values.values())

    with stack.database.read() as session:
        kept = {n: {name: getattr(session.get_one(Receipt, n), name) for name in names} for n in numbers}
    changed = copy.deepcopy(kept)
    try:
        yield changed
    finally:
        write(kept)


def write_receipts(stack: Stack, changed: dict[int, dict[str, Any]], *numbers: int) -> None:
    with stack.database.write() as session:
        for number in numbers:
            session.delete(session.get_one(Receipt, number))
        session.flush()
        session.add_all(Receipt(**row) for row in changed.values())


def last_three(api: httpx.Client) -> list[int]:
    return [int(api.get(erase_nobody(api)["receipt"]).json()["number"]) for _ in range(3)]


def numbers_of(answer: dict[str, Any]) -> set[int]:
    assert answer["valid"] is not bool(answer["flaws"])
    return {flaw["number"] for flaw in answer["flaws"]}


def test_an_altered_text_is_found(stack: Stack, api: httpx.Client) -> None:
    _, middle, _ = last_three(api)
    with change_receipts(stack, middle) as rows:
        rows[middle]["body"]["statement"] = "Nothing happened."
        write_receipts(stack, rows, middle)
        assert numbers_of(chain(api)) == {middle}
    assert chain(api)["valid"]


def test_an_altered_text_with_a_matching_hash_breaks_the_next_receipt(stack: Stack, api: httpx.Client) -> None:
    _, middle, last = last_three(api)
    with change_receipts(stack, middle) as rows:
        body = rows[middle]["body"]
        body["statement"] = "Nothing happened."
        body["sha256"] = rows[middle]["sha256"] = receipts.hash_of(body)
        write_receipts(stack, rows, middle)
        assert last in numbers_of(chain(api))


def test_an_altered_hash_is_found(stack: Stack, api: httpx.Client) -> None:
    _, middle, _ = last_three(api)
    with change_receipts(stack, middle) as rows:
        rows[middle]["sha256"] = "0" * 64
        write_receipts(stack, rows, middle)
        assert numbers_of(chain(api)) == {middle}
    with change_receipts(stack, middle) as rows:
        rows[middle]["body"]["sha256"] = rows[middle]["sha256"] = "0" * 64
        write_receipts(stack, rows, middle)
        assert middle in numbers_of(chain(api))


def test_a_missing_receipt_is_found(stack: Stack, api: httpx.Client) -> None:
    _, middle, _ = last_three(api)
    with change_receipts(stack, middle) as rows:
        rows.clear()
        write_receipts(stack, rows, middle)
        assert middle in numbers_of(chain(api))


def test_receipts_that_changed_places_are_found(stack: Stack, api: httpx.Client) -> None:
    first, middle, _ = last_three(api)
    with change_receipts(stack, first, middle) as rows:
        for name in ("body", "sha256"):
            rows[first][name], rows[middle][name] = rows[middle][name], rows[first][name]
        write_receipts(stack, rows, first, middle)
        assert {first, middle} & numbers_of(chain(api))


def files_of_receipts(stack: Stack) -> dict[int, Path]:
    """The receipts' files by number, all of them written."""
    store = Store(stack.settings.artifacts)
    receipts.file_missing(stack.database, store)
    folder = Path(store.root)
    return {int(Path(name).name[:8]): folder / name for name in store.names(receipts.FOLDER)}


@pytest.mark.parametrize("content", ["altered", b"{", b"", b"\xff", b"[]", b'{"number": null}'], ids=repr)
def test_an_altered_file_is_found(stack: Stack, api: httpx.Client, content: str | bytes) -> None:
    _, middle, _ = last_three(api)
    file = files_of_receipts(stack)[middle]
    kept = file.read_bytes()
    changed = kept.replace(b"No model", b"My model") if content == "altered" else content
    assert isinstance(changed, bytes)
    file.write_bytes(changed)
    try:
        assert numbers_of(chain(api)) == {middle}
        if content != "altered":
            refused(api.post("/v1/erasures/replay"), 409, "receipts_damaged")
    finally:
        file.write_bytes(kept)
    assert chain(api)["valid"]


def test_a_missing_last_receipt_is_found_by_its_file_and_restored_by_a_replay(stack: Stack, api: httpx.Client) -> None:
    last = last_three(api)[-1]
    files_of_receipts(stack)
    with stack.database.write() as session:
        session.delete(session.get_one(Receipt, last))
    assert numbers_of(chain(api)) == {last}
    assert api.post("/v1/erasures/replay").json() == {"receipts": 1, "erasures": []}
    assert chain(api)["valid"]
    assert api.post("/v1/erasures/replay").json() == {"receipts": 0, "erasures": []}
