"""The web pages without JavaScript: access, content, and protection against forged requests. Their appearance is tested
in a real browser, in `tests/worker/test_pages.py`.
"""

from __future__ import annotations

import html
import re
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any
from xml.etree import ElementTree

import httpx
import pytest

from core.clock import now
from core.keys import sign_ins
from core.lifecycle.withdrawal import withdraw
from core.models import catalog
from core.tables.keys import SignIn
from core.tracking.charts import draw_history
from core.versions.purging import purge_weights
from core.versions.queries import find_version
from tests.service.erasure_helpers import act, ask, erase_nobody, model_with_person, open_erasure, somebody
from tests.service.expect import add, rows
from tests.stack import Stack

SCRIPT = "<script>alert(1)</script>"


@contextmanager
def visit(stack: Stack, key: str | None = None) -> Iterator[httpx.Client]:
    """A browser that is signed in with a key: the admin's, unless another is given."""
    with httpx.Client(base_url=stack.url, follow_redirects=True, verify=False, timeout=60) as browser:
        answer = browser.post("/sign-in", data={"key": key or stack.admin_key})
        assert answer.status_code == 200, answer.text
        assert browser.cookies
        yield browser


def form_token(page: httpx.Response) -> str:
    found = re.search(r'name="token" value="([0-9a-f]{64})"', page.text)
    assert found
    return found[1]


def press(browser: httpx.Client, name: str, action: str, **fields: Any) -> httpx.Response:
    """Press a button of a model's page."""
    token = form_token(browser.get(f"/models/{name}"))
    return browser.post(f"/models/{name}/{action}", data={"token": token, **fields})


@pytest.fixture
def trained(stack: Stack, api: httpx.Client) -> str:
    """A model with a champion."""
    name = stack.model()
    add(api, name, rows(6))
    stack.train(name)
    return name


def test_without_signing_in_only_the_sign_in_page_is_shown(stack: Stack, trained: str) -> None:
    with httpx.Client(base_url=stack.url) as stranger:
        first = stranger.get("/")
        assert first.status_code == 200
        assert 'name="key"' in first.text
        assert trained not in first.text
        for path in (f"/models/{trained}", "/models/none", "/privacy", "/privacy/none/receipt"):
            sent_on = stranger.get(path)
            assert sent_on.status_code == 303
            assert sent_on.headers["location"] == f"/sign-in?next={path}"
        assert stranger.post(f"/models/{trained}/hold").status_code == 303


def test_browsers_find_an_icon_wherever_they_look(stack: Stack) -> None:
    found = httpx.get(f"{stack.url}/favicon.ico", follow_redirects=True)
    assert (found.status_code, found.headers["content-type"]) == (200, "image/svg+xml")


def test_a_chart_has_whole_positions_and_no_accuracy_above_one() -> None:
    chart = draw_history("accuracy", "position", {"adapted": [(400, 1.0), (402, 1.0)], "retrained": [(402, 1.0)]})
    assert texts_of(chart, "x") == ["400", "401", "402"]
    assert texts_of(chart, "y")[-1] == "100.0 %"
    drawn = ElementTree.fromstring(chart)
    top = next(float(tick.attrib["y"]) - 4 for tick in drawn.iter("text") if tick.text == "100.0 %")
    assert {float(dot.attrib["cy"]) for dot in drawn.iter("circle")} == {top}
    assert next(drawn.iter("title")).text == "adapted: 100 % at position 400"
    far = draw_history("loss", "position", {"adapted": [(150_000, 0.78), (200_000, 0.765)]})
    assert texts_of(far, "x")[0] == "150\u202f000"
    assert {len(label) for label in texts_of(far, "y")} == {5}


def texts_of(chart: str, kind: str) -> list[str]:
    return [text.text or "" for text in ElementTree.fromstring(chart).iter("text") if text.attrib["class"] == kind]


def test_signing_in_redirects_to_the_requested_page_and_never_to_another_site(stack: Stack, trained: str) -> None:
    with httpx.Client(base_url=stack.url) as browser:
        for wanted, sent_to in {
            f"/models/{trained}": f"/models/{trained}",
            f"/models/{trained}/analyses": f"/models/{trained}/analyses",
            "//evil.example": "/",
            "https://evil.example/": "/",
            "/\\evil.example": "/",
        }.items():
            assert f'value="{sent_to}"' in browser.get("/sign-in", params={"next": wanted}).text
            answer = browser.post("/sign-in", data={"key": stack.admin_key, "next": wanted})
            assert (answer.status_code, answer.headers["location"]) == (303, sent_to)


def test_the_cookie_is_not_the_key_and_no_script_can_read_it(stack: Stack) -> None:
    plain = httpx.post(f"{stack.url}/sign-in", data={"key": stack.admin_key}).headers["set-cookie"]
    assert stack.admin_key.split("_", 2)[2] not in plain
    assert {"httponly", "samesite=lax", "path=/"} <= {part.strip().lower() for part in plain.split(";")}
    assert "max-age=43200" in plain.lower()
    assert "secure" not in plain.lower()
    proxied = {"Origin": "https://amend.example", "Host": "amend.example"}
    answer = httpx.post(f"{stack.url}/sign-in", data={"key": stack.admin_key}, headers=proxied)
    assert "secure" in answer.headers["set-cookie"].lower()


@pytest.mark.parametrize("key", ["", "none", "amend_0123456789ab_" + "x" * 43])
def test_a_key_that_is_not_known_is_refused(stack: Stack, key: str) -> None:
    answer = httpx.post(f"{stack.url}/sign-in", data={"key": key})
    assert answer.status_code == 401
    assert "unknown, expired or revoked" in answer.text
    assert "set-cookie" not in answer.headers


def test_signing_in_again_ends_the_session_before(stack: Stack) -> None:
    with visit(stack) as browser:
        cookies = dict(browser.cookies)
        browser.post("/sign-in", data={"key": stack.key("read")})
        assert "Sign out" in browser.get("/").text
        with httpx.Client(base_url=stack.url, cookies=cookies) as thief:
            assert 'name="key"' in thief.get("/").text


def test_a_session_ends_when_one_signs_out_or_its_key_is_revoked_or_its_time_is_over(
    stack: Stack, api: httpx.Client
) -> None:
    key = stack.key("read")
    with visit(stack, key) as one, visit(stack, key) as two, visit(stack) as three:
        cookies = dict(one.cookies)
        assert "Sign out" in one.get("/").text
        one.post("/sign-out", data={"token": form_token(one.get("/"))})
        with httpx.Client(base_url=stack.url, cookies=cookies) as thief:
            assert 'name="key"' in thief.get("/").text  # not only the browser has forgotten it
        assert "Sign out" in two.get("/").text
        assert api.delete(f"/v1/keys/{key.split('_')[1]}").status_code == 204
        assert 'name="key"' in two.get("/").text
        token = next(iter(three.cookies.values()))
        assert "Sign out" in three.get("/").text
        with stack.database.write() as session:
            session.get_one(SignIn, sign_ins.digest(token)).expires_at = now() - timedelta(seconds=1)
        assert 'name="key"' in three.get("/").text


def test_pages_run_no_foreign_scripts_and_cannot_be_framed(stack: Stack, trained: str) -> None:
    with visit(stack) as browser:
        for path in ("/", "/sign-in", f"/models/{trained}", "/models/none", "/privacy"):
            page = browser.get(path)
            policy = page.headers["content-security-policy"]
            assert "default-src 'none'" in policy
            assert "script-src 'self'" in policy
            assert "frame-ancestors 'none'" in policy
            assert "unsafe" not in policy
            assert page.headers["x-content-type-options"] == "nosniff"
            assert page.headers["cache-control"] == "no-store"
            assert not re.search(r"<script(?! src=\"/assets/)|\son[a-z]+=|\sstyle=|javascript:", page.text)
            assert re.findall(r"(?:src|href)=\"(?:https?:)?//", page.text) == []
            for asset in re.findall(r"(?:src|href)=\"(/assets/[^\"]+)\"", page.text):
                assert browser.get(asset).status_code == 200


def test_a_form_that_another_page_sends_is_refused(stack: Stack, api: httpx.Client, trained: str) -> None:
    with visit(stack) as browser, visit(stack) as other:
        token = form_token(browser.get("/"))
        for foreign in (
            {"Origin": "https://evil.example"},
            {"Origin": "null"},
            {"Origin": "http://["},
            {"Origin": f"http://127.0.0.1:{stack.port + 1}"},
            {"Sec-Fetch-Site": "cross-site"},
            {"Sec-Fetch-Site": "same-site", "Origin": stack.url},
        ):
            for path in (f"/models/{trained}/hold", "/privacy/file", "/privacy/person", "/sign-out", "/sign-in"):
                answer = browser.post(path, data={"token": token, "key": stack.admin_key}, headers=foreign)
                assert answer.status_code == 403, (path, foreign)
        for wrong in ({}, {"token": ""}, {"token": "é"}, {"token": form_token(other.get("/"))}):
            for path in (f"/models/{trained}/hold", "/privacy/file", "/privacy/file/several", "/privacy/person/export"):
                assert browser.post(path, data={"subject": "nobody", "list": "nobody", **wrong}).status_code == 403
        assert browser.get(f"/models/{trained}/hold").status_code == 405
        assert api.get(f"/v1/models/{trained}").json()["held"] is None
        ours = {"Origin": stack.url, "Sec-Fetch-Site": "same-origin"}
        assert browser.post(f"/models/{trained}/hold", data={"token": token}, headers=ours).status_code == 200
        assert api.get(f"/v1/models/{trained}").json()["held"]


def test_a_large_form_is_not_read(stack: Stack) -> None:
    assert httpx.post(f"{stack.url}/sign-in", data={"key": "x" * 100_000}).status_code == 413


def test_buttons_do_what_the_api_does(stack: Stack, api: httpx.Client, trained: str) -> None:
    add(api, trained, rows(3, "more"))
    with visit(stack) as browser:
        page = press(browser, trained, "adapt")
        assert "Adaptation requested." in page.text
        (job,) = api.get("/v1/jobs", params={"model": trained}).json()["items"]
        assert (job["kind"], job["state"]) == ("adapt", "queued")
        assert "<progress" in page.text
        press(browser, trained, "cancel", job=job["id"])
        assert api.get(f"/v1/jobs/{job['id']}").json()["state"] == "cancelled"
        press(browser, trained, "retrain")
        assert api.get("/v1/jobs", params={"model": trained, "kind": "retrain"}).json()["items"]
        stack.train(trained)
        page = press(browser, trained, "promote", version=1)
        model = api.get(f"/v1/models/{trained}").json()
        assert (model["champion"], model["held"]["reason"]) == (1, "version 1 was promoted by hand")
        assert "rolled back from version 2" in page.text
        assert "champion still uses" not in page.text
        api.post(f"/v1/models/{trained}/changes", json={"loss": "squared_hinge"}).raise_for_status()
        spec = browser.get(f"/models/{trained}").text.partition("<h2>Spec</h2>")[2]
        assert re.search(r"<dt>Loss</dt>.*squared_hinge.*champion still uses: log", spec)
        press(browser, trained, "resume")
        assert api.get(f"/v1/models/{trained}").json()["held"] is None
        assert press(browser, trained, "promote", version=77).status_code == 404
        assert press(browser, trained, "delete").status_code == 404
        empty = stack.model()
        refused = press(browser, empty, "adapt")
        assert refused.status_code == 409
        assert "no training examples" in refused.text


def test_the_scope_read_sees_models_without_buttons(stack: Stack, api: httpx.Client, trained: str) -> None:
    with visit(stack, stack.key("read")) as reader:
        assert trained in reader.get(f"/models/{trained}").text
        assert "/hold" not in reader.get(f"/models/{trained}").text
        assert press(reader, trained, "hold").status_code == 403
        assert reader.get("/privacy").status_code == 403
        assert 'href="/privacy"' not in reader.get("/").text
    assert api.get(f"/v1/models/{trained}").json()["held"] is None


def test_the_scope_erase_sees_only_the_privacy_page(stack: Stack, trained: str) -> None:
    with visit(stack, stack.key("erase")) as eraser:
        first = eraser.get("/")
        assert first.url.path == "/privacy"
        assert trained not in first.text
        assert eraser.get(f"/models/{trained}").status_code == 403


@pytest.mark.parametrize("scope", ["ingest", "weights"])
def test_a_key_that_can_see_nothing_cannot_sign_in(stack: Stack, scope: str) -> None:
    answer = httpx.post(f"{stack.url}/sign-in", data={"key": stack.key(scope)})
    assert answer.status_code == 403
    assert "set-cookie" not in answer.headers


def test_a_key_limited_to_some_models_sees_no_other_pages(stack: Stack, api: httpx.Client, trained: str) -> None:
    own = stack.model()
    with visit(stack, stack.key("admin", models=[own])) as holder:
        first = holder.get("/")
        assert own in first.text
        assert trained not in first.text
        hidden, absent = holder.get(f"/models/{trained}"), holder.get("/models/none-such")
        assert hidden.status_code == absent.status_code == 404
        token = form_token(first)
        assert holder.post(f"/models/{trained}/hold", data={"token": token}).status_code == 404
        assert holder.get("/privacy").status_code == 403
    assert api.get(f"/v1/models/{trained}").json()["held"] is None


def test_pages_escape_user_content(stack: Stack, api: httpx.Client) -> None:
    columns = [{"name": SCRIPT, "type": "number"}, {"name": "plan", "type": "category", "values": [SCRIPT, "b"]}]
    target = {"kind": "classes", "values": [SCRIPT, "no", "other"]}
    name = stack.model(input={"kind": "table", "columns": columns}, target=target)
    values = [{"x": {SCRIPT: i, "plan": "b"}, "y": target["values"][i % 3]} for i in range(9)]
    add(api, name, [{"id": f"e{i}", "split": "train", **row} for i, row in enumerate(values)])
    stack.train(name)
    key = api.post("/v1/keys", json={"name": SCRIPT, "scopes": ["admin"]}).json()["key"]
    with stack.client(key) as holder:
        holder.post(f"/v1/models/{name}/versions/1/promote").raise_for_status()
    refused = open_erasure(stack, api, hold=True, reason=SCRIPT)
    act(api, refused["id"], "refuse", reason=SCRIPT).raise_for_status()
    with visit(stack) as browser:
        pages = ("/privacy", "/privacy/register", f"/privacy/{refused['id']}", f"/privacy/{refused['id']}/refusal")
        for path in (f"/models/{name}", "/", *pages):
            assert SCRIPT not in browser.get(path).text
        assert browser.get(f"/models/{name}").text.count(html.escape(SCRIPT)) >= 4  # columns, classes, memory, key
        assert SCRIPT not in browser.get("/sign-in", params={"next": f'"><{SCRIPT}'}).text
        assert SCRIPT not in browser.get(f"/models/{name}", params={"done": SCRIPT[:20], "jobs": SCRIPT}).text


def test_the_privacy_page_lists_due_dates_and_printable_receipts(stack: Stack, api: httpx.Client) -> None:
    person = somebody()
    late = ask(api, somebody(), received_at="2020-01-01T00:00:00Z", hold=True)
    model = model_with_person(stack, api, person)
    waiting = ask(api, person, received_at="2020-01-02T00:00:00Z", hold=True)
    done = erase_nobody(api)
    with visit(stack, stack.key("erase")) as eraser:
        page = eraser.get("/privacy").text
        pending = page.partition('id="pending"')[2].partition("</section>")[0]
        assert 0 < pending.index(late["id"]) < pending.index(waiting["id"])
        assert "overdue" in pending
        assert f"{model}: 2 examples" in pending
        assert done["id"] not in pending
        receipt = eraser.get(f"/privacy/{done['id']}/receipt")
        assert f"/privacy/{done['id']}/receipt" in eraser.get("/privacy/register?state=completed").text
        assert "Receipt of erasure no." in receipt.text
        assert "script-src 'self'" in receipt.headers["content-security-policy"]
        assert eraser.get(f"/privacy/{waiting['id']}/receipt").status_code == 404
        assert eraser.get(f"/privacy/{done['id']}/secrets").status_code == 404
        assert re.search(r'badge good">\d+ verified<', eraser.get("/privacy?verify=true").text)
    for erasure in (late, waiting):  # other tests count them
        act(api, erasure["id"], "refuse", reason="a test").raise_for_status()


def test_hundreds_of_versions_come_in_pages(stack: Stack, api: httpx.Client, trained: str) -> None:
    for _ in range(13):
        stack.train(trained)
    with visit(stack) as browser:
        first = browser.get(f"/models/{trained}").text
        assert f"/models/{trained}?versions=3#versions" in first
        older = browser.get(f"/models/{trained}?versions=3").text
        older = older.partition('id="versions"')[2].partition("</section>")[0]
        assert re.findall(r"<td><a [^>]*>(\d+)</a> <span", older) == ["2", "1"]
        assert "promotions=" in first
        assert browser.get(f"/models/{trained}?versions=x").status_code == 422


def test_pages_distinguish_a_withdrawn_model_from_one_without_examples(
    stack: Stack, api: httpx.Client, trained: str
) -> None:
    with stack.database.write() as session:
        model = catalog.find(session, trained, None, lock=True)
        withdraw(session, model)
    with visit(stack) as browser:
        assert "Withdrawn, with new examples" in browser.get(f"/models/{trained}").text
        api.post(f"/v1/models/{trained}/removals", json={"ids": [row["id"] for row in rows(6)]}).raise_for_status()
        page = browser.get(f"/models/{trained}").text
        assert "Withdrawn: no training examples left" in page
        assert "/adapt" not in page
        add(api, trained, rows(6, "more-"))
        stack.train(trained)
        page = browser.get(f"/models/{trained}").text
        assert "first version after the model was withdrawn" in page
        assert ">first version<" in page
        assert "/adapt" in page


def test_a_models_page_shows_the_baseline_and_class_weights(stack: Stack, api: httpx.Client) -> None:
    name = stack.model(class_weight={"1": 20})
    add(api, name, rows(6))
    stack.train(name)
    with stack.database.write() as session:
        version = find_version(session, catalog.find(session, name, None), 1)
        version.metrics = {"accuracy": 0.92, "baseline_accuracy": 0.96}
    with visit(stack) as browser:
        page = browser.get(f"/models/{name}").text
        assert "baseline (majority class): 96.0 %" in page
        assert "1: 20; other classes: 1" in page


def test_pages_show_a_version_whose_weights_the_policy_deleted(stack: Stack, api: httpx.Client) -> None:
    name = stack.model()
    for i in range(2):
        add(api, name, rows(6, f"v{i}-"))
        stack.train(name)
    with stack.database.write() as session:
        version = find_version(session, catalog.find(session, name, None), 1)
        version.metrics = {"accuracy": 0.92, "rows": 50}
        purge_weights(session, version)
    with visit(stack) as browser:
        page = browser.get(f"/models/{name}").text
        assert "Rebuild" in page
        assert "Roll back" not in page
        page = browser.get(f"/models/{name}/versions/1").text
        assert "92.0 %" in page
        assert "retention has deleted the weights" in page
