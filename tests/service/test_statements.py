"""What receipts, letters and notices state: each sentence appears exactly if it is true."""

from __future__ import annotations

import html
import json
import re
from typing import Any

import httpx
import pytest

from core.erasure.deleted_models import complete_erasures
from core.erasure.glossary import GLOSSARY
from core.versions.store import Store
from tests.receipt_terms import unexplained
from tests.service.erasure_helpers import act, ask, erase_nobody, model_with_person, somebody
from tests.service.expect import add, refused, rows
from tests.service.test_pages import visit
from tests.stack import Stack

HTML = {"Accept": "text/html"}
RIDGE = {"kind": "l2", "delta": 1.0, "penalize_bias": False}
SIMILAR, UNASSIGNED, TOWARD = "similar spelling", "not assigned to any person", "toward numbers that somebody supplied"
COPIED, NOT_COPIED = "The copies listed above", "The audit log shows no download"


def finish(stack: Stack, api: httpx.Client, erasure: dict[str, Any]) -> dict[str, Any]:
    """Complete an erasure without a worker, by deleting its models; the receipt."""
    for part in erasure["models"]:
        assert api.delete(f"/v1/models/{part['model']}").status_code == 204
    complete_erasures(stack.database, Store(stack.settings.artifacts), mlflow=False)
    receipt: dict[str, Any] = api.get(f"/v1/erasures/{erasure['id']}/receipt").raise_for_status().json()
    return receipt


def limits(receipt: dict[str, Any]) -> str:
    return " ".join(receipt["limits"])


def look_up(api: httpx.Client, subject: str) -> dict[str, Any]:
    found: dict[str, Any] = api.post("/v1/subjects/lookup", json={"subject": subject}).raise_for_status().json()
    return found


@pytest.mark.parametrize(
    ("stored", "given"),
    [
        ("anna {} lee", "Anna {} Lee"),
        ("ANNA {} LEE", "anna {} lee"),
        ("Anna {} lee", "ANNA {} LEE"),
        ("anna{}lee", "anna {} lee"),
        ("anna {} lee", "anna  {}  lee"),
        ("anna {} 1", "anna {} \uff11"),
        ("anna.{}@example.com", "Anna.{}@Example.COM"),
    ],
)
def test_similar_spellings_with_examples_are_suggested(
    stack: Stack, api: httpx.Client, stored: str, given: str
) -> None:
    unique = somebody().removeprefix("person-")[:8].translate(str.maketrans("abcdef", "234567"))  # no case of its own
    stored, given = stored.format(unique), given.format(unique)
    model_with_person(stack, api, stored)
    expected = [{"subject": stored, "examples": 2}]
    looked = look_up(api, given)
    assert (looked["models"], looked["near_matches"]) == ([], expected)
    waiting = ask(api, given)
    assert (waiting["state"], waiting["near_matches"]) == ("unmatched", expected)
    assert waiting["searched"] == [{"subject": given, "examples": 0}]
    done = act(api, waiting["id"], "approve").json()
    receipt = api.get(done["receipt"]).json()
    assert (receipt["near_matches"], SIMILAR in limits(receipt)) == (1, True)
    assert stored not in json.dumps(receipt)


def test_a_spelling_that_the_request_includes_is_not_suggested(stack: Stack, api: httpx.Client) -> None:
    person = somebody()
    model_with_person(stack, api, person)
    assert look_up(api, person)["near_matches"] == []
    erasure = ask(api, person.upper())
    assert erasure["near_matches"] == [{"subject": person, "examples": 2}]
    joined = ask(api, person.upper(), subjects=[person])
    assert (joined["id"], joined["near_matches"], joined["state"]) == (erasure["id"], [], "received")
    assert [one["examples"] for one in joined["searched"]] == [0, 2]
    assert len(joined["tokens"]) == 2
    receipt = finish(stack, api, joined)
    assert (receipt["near_matches"], SIMILAR in limits(receipt)) == (0, False)
    assert receipt["statement"].startswith(
        "2 examples under the 2 identifiers of this request were deleted from 1 model."
    )
    assert "these 2 identifiers" in limits(receipt)


def test_similar_spellings_stay_on_the_request_until_all_identifiers_are_filed_again(
    stack: Stack, api: httpx.Client
) -> None:
    person, alias = somebody(), somebody()
    model_with_person(stack, api, person)
    id = ask(api, person.upper(), subjects=[alias])["id"]
    assert ask(api, alias)["near_matches"] == []
    with visit(stack) as browser:
        assert "1 similar spelling that it does not include" in browser.get(f"/privacy/{id}").text
    assert api.get(act(api, id, "approve").json()["receipt"]).json()["near_matches"] == 1


def test_a_limited_key_sees_no_similar_spellings(stack: Stack, api: httpx.Client) -> None:
    person = somebody()
    model_with_person(stack, api, person)
    with stack.client(stack.key("erase", models=[stack.model()])) as limited:
        assert look_up(limited, person.upper()) == {"models": [], "near_matches": []}


def test_models_with_examples_without_a_subject_are_listed(stack: Stack, api: httpx.Client) -> None:
    person = somebody()
    mixed = model_with_person(stack, api, somebody())
    assigned, unlabelled, empty = stack.model(), stack.model(), stack.model()
    add(api, assigned, [{**row, "subject": somebody()} for row in rows(3)])
    add(api, unlabelled, [{**row, "y": None} for row in rows(1)])
    listed = erase_nobody(api, person)
    receipt = api.get(listed["receipt"]).json()
    assert {mixed, unlabelled} <= set(receipt["unsearchable"])
    assert not {assigned, empty} & set(receipt["unsearchable"])
    assert f"{UNASSIGNED}, and that could not be searched: {', '.join(receipt['unsearchable'])}." in limits(receipt)


def test_models_that_are_drawn_toward_given_weights_are_listed(stack: Stack, api: httpx.Client) -> None:
    name = stack.model(regularizer={**RIDGE, "toward": [0.5, -0.25, 1.0]})
    receipt = api.get(erase_nobody(api)["receipt"]).json()
    assert name in receipt["toward"]
    assert TOWARD in limits(receipt)
    add(api, name, rows(2))
    api.post(f"/v1/models/{name}/changes", json={"regularizer": RIDGE}).raise_for_status()
    after = api.get(erase_nobody(api)["receipt"]).json()
    assert name not in after["toward"]
    assert (TOWARD in limits(after)) is bool(after["toward"])


def test_a_request_that_matches_nothing_claims_no_more_than_that(stack: Stack, api: httpx.Client) -> None:
    receipt = api.get(erase_nobody(api)["receipt"]).json()
    nothing = "No example was found under the identifier of this request, so nothing was deleted."
    assert receipt["statement"] == nothing
    assert "Examples about the person under another identifier, or without one, were not found." in limits(receipt)
    assert "Backups were not searched." in limits(receipt)
    assert not {COPIED, NOT_COPIED} & set(receipt["limits"])


def test_copies_are_on_the_receipt_and_their_holders_are_named_in_notices(stack: Stack, api: httpx.Client) -> None:
    person, name = somebody(), stack.model()
    add(api, name, rows(4, "before"))
    first = stack.train(name)
    add(api, name, [{**row, "subject": person} for row in rows(3, "person")])
    second = stack.train(name)
    analyst, early = stack.client(stack.key("weights", "read")), stack.client(stack.key("weights", "read"))
    early.get(f"/v1/models/{name}/versions/{first}/weights").raise_for_status()  # it was not trained on the data
    for what in ("weights", "onnx", "onnx", "coefficients", "onnx"):
        analyst.get(f"/v1/models/{name}/versions/{second}/{what}").raise_for_status()
    analyst.get(f"/v1/models/{name}/examples/export").raise_for_status()
    receipt = finish(stack, api, ask(api, person))
    [part] = receipt["models"]
    assert [(copy["what"], copy["version"], copy["count"]) for copy in part["copies"]] == [
        ("weights_downloaded", second, 1),
        ("onnx_downloaded", second, 3),
        ("coefficients_read", second, 1),
        ("examples_exported", None, 1),
    ]
    times = [(copy["at"], copy["last_at"]) for copy in part["copies"]]
    assert times[1][1] is not None
    assert times[1][0] < times[2][0] < times[1][1]
    assert times[0][1] is None
    assert len({copy["by"] for copy in part["copies"]}) == 1
    assert (COPIED in limits(receipt), NOT_COPIED in limits(receipt)) == (True, False)
    place = f"/v1/erasures/{receipt['erasure']}"
    page = api.get(f"{place}/receipt", headers=HTML).text
    assert f"The weights of version {second}" in page
    assert page.count(f"Version {second} as an ONNX file: 3 times ") == 1
    [notice] = api.get(f"{place}/notices").raise_for_status().json()["items"]
    assert (notice["key"], len(notice["copies"])) == (part["copies"][0]["by"], 4)
    for words in ("Art. 19", f"version {second} as an ONNX file, model {name}, 3 times ", receipt["erasure"]):
        assert words in notice["text"]
    assert person not in notice["text"]
    assert "Notice of erasure (GDPR Art. 19)" in api.get(f"{place}/notices", headers=HTML).text


def test_nobody_is_notified_if_there_are_no_copies(stack: Stack, api: httpx.Client) -> None:
    person = somebody()
    model_with_person(stack, api, person)
    erasure = ask(api, person)
    refused(api.get(f"/v1/erasures/{erasure['id']}/notices"), 404, "receipt_not_found")
    receipt = finish(stack, api, erasure)
    assert (COPIED in limits(receipt), NOT_COPIED in limits(receipt)) == (False, True)
    assert "730 days" in limits(receipt)
    place = f"/v1/erasures/{erasure['id']}/notices"
    assert api.get(place).json() == {"items": []}
    assert "nobody to notify" in api.get(place, headers=HTML).text


def test_exports_of_the_persons_data_are_on_the_receipt(stack: Stack, api: httpx.Client) -> None:
    person, other = somebody(), somebody()
    for subject in (person, other):
        model_with_person(stack, api, subject)
    for headers in ({}, HTML):
        api.post("/v1/subjects/export", json={"subject": person}, headers=headers).raise_for_status()
    receipts = [finish(stack, api, ask(api, subject)) for subject in (person, other)]
    exported = [[words for words in receipt["limits"] if "exported or reported" in words] for receipt in receipts]
    assert (len(exported[0]), exported[1]) == (1, [])
    assert "2 times" in exported[0][0]


def test_a_bundle_is_in_the_audit_log(stack: Stack, api: httpx.Client) -> None:
    erasure = erase_nobody(api)
    api.get(f"/v1/erasures/{erasure['id']}/bundle").raise_for_status()
    [entry] = api.get("/v1/audit", params={"erasure": erasure["id"], "action": "bundle_downloaded"}).json()["items"]
    assert (entry["model"], entry["version"]) == (None, None)  # it contains no version


def test_the_receipt_shows_identifiers_as_spelt_only_to_those_who_know_them(stack: Stack, api: httpx.Client) -> None:
    person, alias = f"{somebody()} <&>", somebody()
    id = act(api, ask(api, person, subjects=[alias])["id"], "approve").json()["id"]
    place = f"/v1/erasures/{id}/receipt"
    plain = api.get(place, headers=HTML).text
    spelt = api.post(place, json={"subjects": [alias, person]}, headers=HTML).raise_for_status().text
    assert f"“{html.escape(person)}”" in spelt
    assert f"“{alias}”" in spelt
    for name in (alias, person, html.escape(person)):
        assert name not in plain
    receipt = api.post(place, json={"subjects": [alias]}).raise_for_status().json()
    assert receipt["searched"] == [{"subject": alias, "token": receipt["alias_tokens"][0]}]
    assert {key: value for key, value in receipt.items() if key != "searched"} == api.get(place).json()
    for wrong in (alias.upper(), somebody()):
        refused(api.post(place, json={"subjects": [wrong]}), 409, "subject_not_searched")
    refused(api.post(place, json={"subjects": []}), 422, "request_invalid")
    looked_up = api.get("/v1/audit", params={"erasure": id, "action": "subject_looked_up"}).json()["items"]
    assert len(looked_up) == 4
    with stack.database.engine.connect() as connection:  # nothing that was spelt is stored
        assert alias not in "".join(str(row) for row in connection.exec_driver_sql("SELECT * FROM receipts"))


def test_a_refusal_says_what_was_in_use(stack: Stack, api: httpx.Client) -> None:
    person = somebody()
    trained, untrained, earlier = (stack.model() for _ in range(3))
    add(api, earlier, rows(4, "before"))
    stack.train(earlier)
    for name in (trained, untrained, earlier):
        add(api, name, [{**row, "subject": person} for row in rows(2)])
    stack.train(trained)
    id = ask(api, person, hold=True)["id"]
    act(api, id, "refuse", reason="kept by law").raise_for_status()
    told = api.get(f"/v1/erasures/{id}/refusal").json()
    assert (told["examples"], told["in_use"]) == (6, [trained])
    letter = api.get(f"/v1/erasures/{id}/refusal", headers=HTML).text
    assert f"Models that had already been trained on them were in use during that time: {trained}." in letter
    assert "6 records about you were left out of new training." in letter
    assert "not used" not in letter


def test_a_refusal_claims_no_use_where_there_was_none(stack: Stack, api: httpx.Client) -> None:
    person = somebody()
    model_with_person(stack, api, person, 1)
    left_out = "While your request was open, 1 record about you was left out of new training."
    outcomes = {
        person: f"{left_out} From now on, the record is used again.",
        somebody(): "We found no record under the identifiers of your request.",
    }
    for subject, outcome in outcomes.items():
        id = ask(api, subject)["id"]
        act(api, id, "refuse", reason="no").raise_for_status()
        told = api.get(f"/v1/erasures/{id}/refusal").json()
        assert (told["in_use"], told["outcome"]) == ([], outcome)


def test_every_technical_term_on_a_receipt_is_in_its_glossary(stack: Stack, api: httpx.Client) -> None:
    person, name = somebody(), stack.model()
    add(api, name, [{**row, "subject": person} for row in rows(3)])
    api.get(f"/v1/models/{name}/versions/{stack.train(name)}/onnx").raise_for_status()
    receipts = [finish(stack, api, ask(api, person))["erasure"], erase_nobody(api)["id"]]
    for id in receipts:
        page = api.get(f"/v1/erasures/{id}/receipt", headers=HTML).text
        assert unexplained(page) == set()
        assert set(re.findall(r"<th>(.*?)</th>", page.partition("<h2>Glossary</h2>")[2])) <= set(GLOSSARY)
