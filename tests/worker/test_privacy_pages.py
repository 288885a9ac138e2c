"""A month of a privacy officer's work in a real browser, and the pages in the dark and on a phone."""

from __future__ import annotations

import csv
import io
import json
import os
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from zipfile import ZipFile

import pytest
from playwright.sync_api import Browser, BrowserContext, Page, expect

from amend.verification.merkle import includes, leaf_hash
from core.erasure import state_changes
from core.models import catalog
from core.register.records import canonical, commit
from tests.browser import browser
from tests.worker.deployment import Deployment
from tests.worker.test_pages import PHONE, PICTURES

pytestmark = pytest.mark.parametrize("deployment", ["sqlite"], indirect=True)

COLUMNS = [{"name": "age", "type": "number"}, {"name": "plan", "type": "category", "values": ["basic", "premium"]}]


@pytest.fixture(scope="module")
def chromium() -> Iterator[Browser]:
    with browser() as found:
        yield found


@pytest.fixture(scope="module")
def model(deployment: Deployment) -> str:
    """A model with examples about twelve people, who are named after it."""
    name = deployment.new_model(input={"kind": "table", "columns": COLUMNS}, policy={"holdout": 0.0})
    people = [f"{name}-{i % 12}" for i in range(120)]
    rows = [
        {
            "id": f"e{i}",
            "subject": person,
            "x": {"age": 20 + i % 50, "plan": "basic" if i % 5 else "premium"},
            "y": i % 2,
        }
        for i, person in enumerate(people)
    ]
    deployment.post(f"/v1/models/{name}/examples?source=crm", {"examples": rows})
    deployment.adapted(name)
    return name


@pytest.fixture(scope="module")
def officer(deployment: Deployment) -> str:
    key = deployment.post("/v1/keys", {"name": "Olive Officer", "scopes": ["erase"]})
    return str(key["key"])


def sign_in(context: BrowserContext, deployment: Deployment, key: str) -> Page:
    page = context.new_page()
    page.goto(f"{deployment.url}/privacy")
    page.get_by_label("API key").fill(key)
    page.get_by_role("button", name="Sign in").click()
    page.get_by_role("heading", name="Privacy").wait_for()
    return page


class Officer:
    """What an officer does on the pages."""

    def __init__(self, page: Page, deployment: Deployment, pictures: Path) -> None:
        self.page, self.deployment = page, deployment
        self.pictures = Path(os.environ.get(PICTURES, pictures))

    def keep(self, name: str) -> None:
        self.page.screenshot(path=self.pictures / f"privacy-{name}.png", full_page=True)

    def go(self, tab: str) -> None:
        self.page.get_by_label("Privacy", exact=True).get_by_role("link", name=tab).click()

    def look_up(self, person: str) -> None:
        self.go("Look up a person")
        self.page.get_by_label("Identifier of the person").fill(person)
        self.page.get_by_role("button", name="Look up").click()
        self.page.get_by_role("heading", name="Requests and receipts").wait_for()

    def file(self, subject: str, **details: str) -> str:
        """File a request with the form, held; returns its id."""
        self.go("File requests")
        form = self.page.locator('form[action="/privacy/file"]')
        for label, value in {"Identifier of the person": subject, **details}.items():
            form.get_by_label(label).fill(value)
        form.get_by_label("Hold for approval").check()
        form.get_by_role("button", name="File the request").click()
        self.page.get_by_text("The request was filed.").wait_for()
        return self.id

    @property
    def id(self) -> str:
        """The id of the request that is shown."""
        return self.page.url.partition("/privacy/")[2].partition("?")[0]

    def decide(self, decision: str, reason: str = "") -> None:
        box = self.page.locator("details", has=self.page.locator("summary", has_text=decision))
        box.locator("summary").click()
        if reason:
            box.get_by_label("Reason").fill(reason)
        box.get_by_role("button", name=decision).click()
        self.page.get_by_role("status").wait_for()

    def letter(self, title: str) -> str:
        """The text of a letter of the request that is shown."""
        self.page.get_by_role("link", name=title).click()
        self.page.get_by_text("Yours faithfully").wait_for()
        self.keep(f"letter-{title.partition(': ')[2].split()[0].lower()}")
        text = self.page.locator("body").inner_text()
        assert "Example Ltd" in text
        assert "privacy@example.com" in text
        self.page.go_back()
        return text

    def state(self) -> str:
        return self.page.locator("h1 .badge").inner_text()


def test_a_month_of_an_officer(
    chromium: Browser, deployment: Deployment, model: str, officer: str, tmp_path: Path
) -> None:
    with chromium.new_context(viewport={"width": 1280, "height": 900}, accept_downloads=True) as context:
        strangers: list[str] = []
        context.on("request", lambda r: strangers.append(r.url) if not r.url.startswith(deployment.url) else None)
        page = sign_in(context, deployment, officer)
        troubles: list[str] = []
        page.on("console", lambda m: troubles.append(m.text) if m.type in ("error", "warning") else None)
        me = Officer(page, deployment, tmp_path)
        answer_access_request(me, model)
        correct_an_example(me, model)
        restrict_and_lift(me, model)
        done = erase_somebody(me, model)
        decide_about_a_list(me, model)
        retry_what_failed(me, model)
        read_the_register(me, model, done)
        find_a_receipt(me, model)
        assert strangers == []
        assert [text for text in troubles if "422" not in text] == []  # two forms were filled in wrongly
    actors = {entry["actor"]["name"] for entry in deployment.get("/v1/audit?action=subject_looked_up")["items"]}
    assert "Olive Officer" in actors


def answer_access_request(me: Officer, model: str) -> None:
    """Week 1: a person asks what is stored (GDPR Art. 15)."""
    page = me.page
    me.look_up(f"{model}-1")
    expect(page.locator("#data").get_by_role("row", name=f"{model} 10")).to_have_count(1)
    assert f"{model}-1" not in page.url
    me.keep("person")
    with page.expect_download() as download:
        page.get_by_role("button", name="Download the data").click()
    lines = [json.loads(line) for line in download.value.path().read_text().splitlines()]
    assert {line["subject"] for line in lines} == {f"{model}-1"}
    with page.expect_popup() as opened:
        page.get_by_role("button", name="Access report").click()
    opened.value.get_by_role("heading", name="Data stored about you").wait_for()
    opened.value.screenshot(path=me.pictures / "privacy-report.png", full_page=True)
    report = opened.value.locator("body").inner_text()
    for words in (f"“{model}-1”", "used to train the model", "crm", "Example Ltd", "premium", "example.com/privacy"):
        assert words in report
    expect(opened.value.locator("tbody tr", has_text="used to train")).to_have_count(10)
    opened.value.close()


def correct_an_example(me: Officer, model: str) -> None:
    """The person says that an age is wrong (Art. 16)."""
    page = me.page
    me.look_up(f"{model}-1")
    page.get_by_role("button", name="Show or correct").click()
    me.keep("examples")
    page.get_by_role("button", name="Correct e13").click()
    page.get_by_label("age").fill("forty")
    page.get_by_role("button", name="Correct the example").click()
    page.get_by_role("alert").wait_for()
    assert page.get_by_label("age").input_value() == "forty"
    me.keep("correct")
    page.get_by_label("age").fill("41")
    page.get_by_label("Your reference").fill("C-1")
    page.get_by_role("button", name="Correct the example").click()
    page.get_by_text("The example was corrected.").wait_for()
    assert me.deployment.get(f"/v1/models/{model}/examples/e13")["x"] == {"age": 41, "plan": "basic"}


def restrict_and_lift(me: Officer, model: str) -> None:
    """Another person contests the data: it is not used until the matter is settled (Art. 18)."""
    page, deployment = me.page, me.deployment
    before = deployment.get(f"/v1/models/{model}")["counts"]["train"]
    me.look_up(f"{model}-2")
    page.get_by_text("Restrict processing…").click()
    box = page.locator("details", has_text="Restrict processing…")
    box.get_by_label("Your reference").fill("A18-1")
    box.get_by_label("Reason or note").fill("says that the data is wrong")
    box.get_by_role("button", name="Restrict processing").click()
    page.get_by_text("The processing of the person's data is restricted.").wait_for()
    assert deployment.get(f"/v1/models/{model}")["counts"]["train"] == before - 10
    assert "says that the data is wrong" in page.locator("#facts").inner_text()
    me.keep("restriction")
    assert "no new training uses the data" in me.letter("Letter: Restriction of processing")
    assert "We are going to lift" in me.letter("Letter: Lifting of the restriction")
    me.go("Open requests")
    page.locator("#restricted").get_by_role("link", name="A18-1").click()
    me.decide("Lift the restriction", "the person confirmed the data")
    assert me.state() == "lifted"
    assert deployment.get(f"/v1/models/{model}")["counts"]["train"] == before
    history = page.locator("#history").inner_text()
    assert "processing restricted by Olive Officer" in history
    assert "restriction lifted by Olive Officer: the person confirmed the data" in history


def erase_somebody(me: Officer, model: str) -> str:
    """Week 2: an erasure, from the letter of the person to the letter to the person (Art. 17)."""
    page = me.page
    received = datetime.now(UTC) - timedelta(days=10)
    details = {
        "Other identifiers": f"{model}-4",
        "Received on": f"{received:%Y-%m-%d}",
        "Your reference": "E-1",
        "Reason or note": "letter",
    }
    id = me.file(f"{model}-3", **details)
    assert me.state() == "held"
    facts = page.locator("#facts").inner_text()
    for words in ("E-1", "letter", f"{received:%Y-%m-%d}", "Filed by\nOlive Officer"):
        assert words in facts
    expect(page.locator("#progress").get_by_role("row", name=f"{model} 20 held")).to_have_count(1)
    me.keep("request")
    text = me.letter("Letter: Confirmation of receipt")
    check_acknowledgement(text[text.index("{") : text.rindex("}") + 1], me.deployment)
    me.decide("Approve")
    expect(page.locator("#progress .badge")).to_have_text("completed", timeout=60_000)
    page.reload()
    assert me.state() == "completed"
    assert "completed, receipt issued by Amend" in page.locator("#history").inner_text()
    me.keep("completed")
    text = me.letter("Letter: Completion")
    assert "Enclosed: Receipt of erasure no." in text
    page.get_by_role("link", name="Receipt no.").click()
    page.get_by_role("heading", name="Receipt of erasure no.").wait_for()
    page.go_back()
    with page.expect_download() as download:
        page.get_by_role("button", name="Download the evidence").click()
    with ZipFile(download.value.path()) as bundle:
        assert "receipt.json" in bundle.namelist()
    page.reload()
    assert "evidence exported by" in page.locator("#history").inner_text()
    return id


def check_acknowledgement(printed: str, deployment: Deployment) -> None:
    """What the letter prints proves that the register contains the request."""
    found: dict[str, Any] = json.loads(printed)
    commitment = commit(bytes.fromhex(found["salt"]), canonical(found["record"]))
    assert found["commitment"] == commitment.hex()
    assert found["record"]["reference"] == "E-1"
    path, head = [bytes.fromhex(value) for value in found["path"]], found["head"]
    assert includes(bytes.fromhex(head["root"]), head["size"], found["leaf"], leaf_hash(commitment), path)


def decide_about_a_list(me: Officer, model: str) -> None:
    """Week 3: several requests came at once; each is decided differently."""
    page = me.page
    me.go("File requests")
    form = page.locator('form[action="/privacy/file/several"]')
    form.get_by_label("List of requests").fill(f"{model}-5;;2099-01-01;L-1")
    form.get_by_role("button", name="File all requests").click()
    assert page.get_by_role("alert").inner_text() == "Request 1: date of receipt must not be in the future."
    lines = [f"{model}-5;;;L-1;by mail", f"{model}-6;{model}-7|nobody-{model};;L-2", f"{model}-8;;;L-3"]
    form.get_by_label("List of requests").fill("\n".join(lines))
    form.get_by_label("Hold for approval").check()
    me.keep("file")
    form.get_by_role("button", name="File all requests").click()
    page.get_by_text("3 requests filed.").wait_for()
    expect(page.get_by_role("link", name="Confirmation of receipt")).to_have_count(3)
    me.keep("filed")
    page.get_by_role("link", name="L-1").click()
    me.decide("Refuse", "we need the data for an open invoice")
    assert me.state() == "refused"
    refusal = me.letter("Letter: Refusal")
    assert "we need the data for an open invoice" in refusal
    me.go("Open requests")
    me.keep("worklist")
    page.get_by_role("link", name="L-2").click()
    expect(page.locator("#progress").get_by_role("row", name=f"{model} 20 held")).to_have_count(1)
    me.decide("Extend", "500 requests came at once")
    assert "extended" in page.locator("#facts").inner_text()
    assert "500 requests came at once" in me.letter("Letter: Extension of the due date")
    me.decide("Withdraw")
    assert me.state() == "withdrawn"
    assert "Nothing was erased" in me.letter("Letter: Withdrawal")
    me.go("Open requests")
    page.get_by_role("link", name="L-3").click()
    with me.deployment.worker_held():
        me.decide("Approve")
        me.decide("Hold")
        assert me.state() == "held"
    me.decide("Withdraw")


def retry_what_failed(me: Officer, model: str) -> None:
    """Week 4: an erasure fails, and is tried again."""
    page, deployment = me.page, me.deployment
    id = me.file(f"{model}-9", **{"Your reference": "F-1"})
    with deployment.worker_held():
        me.decide("Approve")
        with deployment.database.write() as session:
            found = catalog.find(session, model, None, lock=True)
            state_changes.fail(session, found.id, {"code": "solver_failed", "detail": "no luck"})
        page.reload()
        assert me.state() == "failed"
        advice = page.locator("#progress").inner_text()
        assert "The model could not be computed without this data." in advice
        assert "then select Retry" in advice
        assert "no luck" not in advice  # unfolded by those who solve the problem
        page.get_by_text("Message for the people who operate the service").click()
        assert "solver_failed: no luck" in page.locator("#progress").inner_text()
        me.keep("failed")
        me.go("Open requests")
        assert "no luck" not in page.locator("#pending").inner_text()
        page.get_by_role("link", name="stopped: see what to do").click()
        me.decide("Retry")
    deployment.wait_until(lambda: deployment.get(f"/v1/erasures/{id}")["state"] == "completed")


def read_the_register(me: Officer, model: str, done: str) -> None:
    """The end of the month: the report to the management."""
    page, year = me.page, datetime.now(UTC).year
    me.go("Register")
    page.get_by_role("link", name=str(year), exact=True).click()
    page.wait_for_url(f"**year={year}")
    me.keep("register")
    missing, older = {"E-1", "L-1", "L-2", "L-3", "F-1", "A18-1"}, page.get_by_role("link", name="Older", exact=True)
    missing -= set(page.locator("#register table a").all_inner_texts())
    while missing and older.count():  # other tests file requests as well
        with page.expect_navigation():
            older.click()
        missing -= set(page.locator("#register table a").all_inner_texts())
    assert not missing
    with page.expect_download() as download:
        page.get_by_role("link", name="Download as CSV").click()
    rows = {row["reference"]: row for row in csv.DictReader(io.StringIO(download.value.path().read_text()))}
    assert (rows["E-1"]["request"], rows["E-1"]["state"], rows["E-1"]["examples"]) == (done, "completed", "20")
    assert [rows[r]["state"] for r in ("L-1", "L-2", "L-3", "A18-1")] == ["refused", "withdrawn", "withdrawn", "lifted"]
    assert {rows["E-1"]["filed by"], rows["A18-1"]["kind"], rows["L-2"]["extended"]} == {
        "Olive Officer",
        "restriction",
        "yes",
    }
    me.go("Statistics")
    me.keep("statistics")
    numbers = page.get_by_role("row", name=str(year)).locator("td").all_inner_texts()
    received, completed, refused, withdrawn = map(int, numbers[:4])
    assert received >= completed + refused + withdrawn
    assert (completed >= 2, refused >= 1, withdrawn >= 2) == (True, True, True)
    assert int(numbers[-1]) >= 1  # corrections


def find_a_receipt(me: Officer, model: str) -> None:
    """A person calls: what became of my request? The identifier is an alias that was given with it."""
    me.look_up(f"{model}-4")
    expect(me.page.get_by_text("No model has examples with exactly this identifier.")).to_have_count(1)
    with me.page.expect_popup() as opened:
        me.page.locator("#requests").get_by_role("link", name="Receipt").click()
    opened.value.get_by_role("heading", name="Receipt of erasure no.").wait_for()


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_the_privacy_pages_fit_a_phone_in_light_and_dark(
    chromium: Browser, deployment: Deployment, model: str, officer: str, scheme: str, tmp_path: Path
) -> None:
    person = f"{model}-10"
    id = deployment.post("/v1/erasures", {"subject": person, "hold": True, "reference": f"phone-{scheme}"})["id"]
    with chromium.new_context(viewport=PHONE, color_scheme=scheme) as context:  # type: ignore[arg-type]
        page = sign_in(context, deployment, officer)
        me = Officer(page, deployment, tmp_path)

        def check(name: str) -> None:
            me.keep(f"phone-{name}-{scheme}")
            wide = page.evaluate("document.documentElement.scrollWidth")
            assert wide <= PHONE["width"], f"{name} is {wide} wide"

        for path in ("", "/file", "/register", "/statistics", f"/{id}", f"/{id}/confirmation"):
            page.goto(f"{deployment.url}/privacy{path}")
            check(path.rpartition("/")[2].partition("-")[0] or "worklist")
        page.goto(f"{deployment.url}/privacy")
        me.look_up(person)
        check("person")
        page.get_by_role("button", name="Show or correct").click()
        check("examples")
        page.get_by_role("button", name="Correct e10", exact=True).click()
        check("correct")


def test_requests_are_filed_and_decided_without_javascript(
    chromium: Browser, deployment: Deployment, model: str, officer: str, tmp_path: Path
) -> None:
    with chromium.new_context(java_script_enabled=False) as context:
        me = Officer(sign_in(context, deployment, officer), deployment, tmp_path)
        me.file(f"{model}-11", **{"Your reference": "N-1"})
        me.decide("Refuse", "no")
        assert me.state() == "refused"
