"""The banner about a rejected version, in a real browser: both differences, and the decision with its confirmation."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, expect

from tests.browser import browser
from tests.service.test_pages import press, visit
from tests.worker.deployment import Deployment
from tests.worker.test_gate import World, poisoned, started, subject
from tests.worker.test_pages import PHONE, keep, sign_in
from tests.worker.test_webhooks import told

pytestmark = pytest.mark.parametrize("deployment", ["sqlite"], indirect=True)


@pytest.fixture(scope="module")
def chromium() -> Iterator[Browser]:
    with browser() as found:
        yield found


def test_a_rejected_batch_is_explained_and_accepted(chromium: Browser, deployment: Deployment, tmp_path: Path) -> None:
    name, *_ = poisoned(deployment, World())
    gate = deployment.version(name, 2)["gate"]
    with chromium.new_context(viewport={"width": 1280, "height": 900}) as context:
        page = sign_in(context, deployment)
        page.goto(f"{deployment.url}/?after={name[:-1]}")  # other tests may have filled the first page with models
        expect(page.locator("article", has_text=name).get_by_text("in quarantine")).to_have_count(1)
        page.goto(f"{deployment.url}/models/{name}")
        banner = page.get_by_role("region", name="Rejected version 2")
        assert "1\u202f000 examples are in quarantine" in banner.inner_text()
        old, own = banner.locator("tbody tr").all_inner_texts()
        assert old.startswith("200 from before the batch")
        assert f"worse by {gate['difference']:.3f} ± {gate['difference_se']:.3f}" in old
        assert own.startswith("200 of the batch itself")
        assert f"better by {-gate['batch']['difference']:.3f} ± {gate['batch']['difference_se']:.3f}" in own
        assert "look the same to statistics" in banner.inner_text()
        expect(page.locator("#versions tr", has_text="rejected")).to_have_count(1)
        assert page.locator("#history svg.chart").count() == 0  # a rejected version was never in service
        keep(page, "page-quarantine.png", tmp_path)
        page.goto(f"{deployment.url}/models/{name}/versions/2")
        gate_card = page.locator("#gate").inner_text()
        assert "It was rejected." in gate_card
        assert f"worse by {gate['difference']:.3f} ± {gate['difference_se']:.3f}" in gate_card
        page.goto(f"{deployment.url}/models/{name}/versions/1")
        assert "Not judged: this is the first version." in page.locator("#gate").inner_text()
        page.goto(f"{deployment.url}/models/{name}")
        accept = page.get_by_role("button", name="Accept 1\u202f000 examples")
        assert not accept.is_visible()  # only after a first click
        banner.get_by_text("Accept…").click()
        accept.click()
        page.get_by_text("The examples were put back into force.").wait_for()
        expect(banner).to_have_count(0)
        page.locator("#versions").get_by_text("2 champion").wait_for()
    assert deployment.get(f"/v1/models/{name}")["counts"]["quarantined"] == 0


def test_discarding_works_without_javascript_and_a_deleted_comparison_is_mentioned(
    chromium: Browser, deployment: Deployment
) -> None:
    name, good, bad = poisoned(deployment, World())
    for number in (good[1], bad[1]):  # the champion and the rejected version are purged
        asked = deployment.post("/v1/erasures", {"subject": subject(name, number)})
        deployment.wait_until(lambda at=asked["id"]: deployment.get(f"/v1/erasures/{at}")["state"] == "completed")
    with chromium.new_context(java_script_enabled=False) as context:
        page = sign_in(context, deployment, f"/models/{name}")
        banner = page.get_by_role("region", name="Rejected version 2")
        assert "Its metrics were deleted" in banner.inner_text()
        banner.get_by_text("Discard…").click()
        page.get_by_role("button", name="Discard 999 examples").click()
        page.get_by_text("The examples were removed.").wait_for()
        expect(banner).to_have_count(0)


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_the_banner_fits_a_phone(chromium: Browser, deployment: Deployment, scheme: str, tmp_path: Path) -> None:
    name, *_ = poisoned(deployment, World())
    with chromium.new_context(viewport=PHONE, color_scheme=scheme) as context:  # type: ignore[arg-type]
        page = sign_in(context, deployment, f"/models/{name}")
        page.get_by_text("Accept…").click()
        assert page.evaluate("document.documentElement.scrollWidth") <= PHONE["width"]
        keep(page, f"phone-quarantine-{scheme}.png", tmp_path)


def test_only_an_admin_decides_and_only_with_a_form_of_the_own_session(deployment: Deployment) -> None:
    name, *_ = poisoned(deployment, World())
    reader = deployment.post("/v1/keys", {"name": "reader", "scopes": ["read"]})["key"]
    with visit(deployment, reader) as browser:
        page = browser.get(f"/models/{name}").text
        assert "Someone with an admin key can accept or discard" in page
        assert "/accept" not in page
        assert press(browser, name, "accept", version=2).status_code == 403
    with visit(deployment) as browser:
        forged = browser.post(f"/models/{name}/discard", data={"token": "0" * 64, "version": 2})
        assert forged.status_code == 403
    metric = f'amend_quarantined_examples{{model="{name}"}} 1000.0'
    with deployment.client() as client:
        deployment.wait_until(lambda: metric in client.get("/metrics").text)
    assert deployment.get(f"/v1/models/{name}")["counts"]["quarantined"] == 1000


def test_a_model_without_rejected_versions_has_no_banner(deployment: Deployment) -> None:
    name, _ = started(deployment, World())
    with visit(deployment) as browser:
        assert "Rejected version" not in browser.get(f"/models/{name}").text


def test_corrections_that_make_a_model_worse_are_noticed(deployment: Deployment) -> None:
    """They are promoted at once, but somebody may have poisoned the model by them."""
    world = World()
    with told(deployment, "version.rejected") as (receiver, _):
        name, good = started(deployment, world)
        rows = [{"id": f"e{i}", "x": world.x[i].tolist(), "y": int(1 - world.y[i])} for i in good if i % 5 != 0]
        job = deployment.ended(deployment.request("PUT", f"/v1/models/{name}/examples", json={"examples": rows})["job"])
        assert job["message"].endswith("It failed the promotion gate.")
        event = {"model": name, "version": 2, "rejected": False, "quarantined": 0}
        deployment.wait_until(lambda: event in receiver.events("version.rejected"))
    notice, metric = "worse than the promotion gate allows", f'amend_gate_failed{{model="{name}"}} '
    with visit(deployment) as browser, deployment.client() as client:
        page = browser.get(f"/models/{name}").text
        assert notice in page
        assert page.count("gate failed") == 1
        shown = browser.get(f"/models/{name}/versions/2").text
        assert "worse by" in shown[shown.index('id="gate"') :]
        deployment.wait_until(lambda: f"{metric}1.0" in client.get("/metrics").text)
        deployment.post(f"/v1/models/{name}/versions/2/promote")  # a person has looked at it
        assert notice not in browser.get(f"/models/{name}").text
        deployment.wait_until(lambda: f"{metric}0.0" in client.get("/metrics").text)
