"""The pages in a real browser: signing in, pressing a button, watching the job; in light and dark, and on a phone."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, BrowserContext, Page, expect

from tests.browser import browser
from tests.worker.deployment import Deployment, problem

PICTURES = "AMEND_TEST_PICTURES"
"""A folder in which to keep the screenshots, for the docs."""
PHONE = {"width": 390, "height": 844}
LONG = "a-model-with-a-name-as-long-as-names-can-be-without-any-spaces1"

pytestmark = pytest.mark.parametrize("deployment", ["sqlite"], indirect=True)


@pytest.fixture(scope="module")
def chromium() -> Iterator[Browser]:
    with browser() as found:
        yield found


@pytest.fixture(scope="module")
def name(deployment: Deployment) -> str:
    """A model that was adapted and retrained, has something pending, and a long name."""
    policy = {"adapt": {"after_changes": None, "every": None}, "retrain": {"every": None}, "holdout": 0.2}
    deployment.post(
        "/v1/models",
        {"name": LONG, "input": {"kind": "vector", "dim": 4}, "target": {"kind": "binary"}, "policy": policy},
    )
    x, y = problem(400)
    for i in range(3):
        deployment.add_examples(LONG, x[100 * i : 100 * i + 100], y[100 * i : 100 * i + 100], first=100 * i)
        deployment.adapted(LONG)
    deployment.ended(deployment.post(f"/v1/models/{LONG}/retrains")["id"])
    deployment.add_examples(LONG, x[300:], y[300:], first=300)
    deployment.post("/v1/erasures", {"subject": "nobody-known", "hold": True})
    return LONG


def sign_in(context: BrowserContext, deployment: Deployment, path: str = "/") -> Page:
    page = context.new_page()
    page.goto(deployment.url + path)
    page.get_by_label("API key").fill(deployment.admin_key)
    page.get_by_role("button", name="Sign in").click()
    page.get_by_role("button", name="Sign out").wait_for()
    return page


def keep(page: Page, name: str, otherwise: Path) -> None:
    page.screenshot(path=Path(os.environ.get(PICTURES, otherwise)) / name, full_page=True)


def test_a_day_with_the_pages(chromium: Browser, deployment: Deployment, name: str, tmp_path: Path) -> None:
    """Sign in, look around, have the model adapted and watch it without touching anything, sign out."""
    with chromium.new_context(viewport={"width": 1280, "height": 900}) as context:
        strangers: list[str] = []
        context.on("request", lambda r: strangers.append(r.url) if not r.url.startswith(deployment.url) else None)
        troubles: list[str] = []
        page = sign_in(context, deployment)
        page.on("console", lambda m: troubles.append(m.text) if m.type in ("error", "warning") else None)
        page.get_by_role("link", name=name).click()
        assert page.locator("#history svg.chart .line").count() == 3  # adapted, retrained, frozen
        assert page.get_by_text("100", exact=True).count()  # pending
        keep(page, "page-model.png", tmp_path)
        cut = "e => e.scrollWidth > e.clientWidth + 1"
        assert page.locator("#promotions .scroll").evaluate(cut) is False
        with deployment.worker_held():
            page.get_by_role("button", name="Adapt").click()
            page.get_by_text("Adaptation requested.").wait_for()
            expect(page.locator("#jobs tr[data-active] progress")).to_have_count(1)
            before = page.url
        page.locator("#jobs tbody tr:not([data-active])").first.get_by_text("succeeded").wait_for(timeout=30_000)
        page.locator("#jobs tr[data-active]").wait_for(state="detached", timeout=30_000)
        page.locator("#versions").get_by_text("5 champion").wait_for(timeout=30_000)
        assert page.url == before
        page.get_by_role("link", name="Privacy").click()
        page.get_by_role("heading", name="Open requests").wait_for()
        keep(page, "page-privacy.png", tmp_path)
        page.get_by_role("link", name="Verify all").click()
        page.get_by_text("verified").wait_for()
        with page.expect_request(lambda request: "/privacy" in request.url) as refreshed:
            page.evaluate("refresh()")
        assert "verify" not in refreshed.value.url  # the chain is walked when somebody asks, not all the time
        page.get_by_text("verified").wait_for()
        page.get_by_role("button", name="Sign out").click()
        page.get_by_label("API key").wait_for()
        page.go_back()
        page.get_by_label("API key").wait_for()  # not what was seen before, out of the browser's memory
        assert strangers == []
        assert troubles == []


def test_everything_but_live_progress_works_without_javascript(
    chromium: Browser, deployment: Deployment, name: str
) -> None:
    with chromium.new_context(java_script_enabled=False) as context:
        page = sign_in(context, deployment, f"/models/{name}")
        assert page.url.endswith(f"/models/{name}")
        expect(page.locator("#history svg.chart .line")).to_have_count(3)
        page.get_by_role("button", name="Hold").click()
        page.get_by_text("The model is held.").wait_for()
        page.get_by_role("button", name="Resume").click()
        page.get_by_text("Automatic adaptations, retrains and promotions are resumed.").wait_for()
        page.get_by_role("button", name="Sign out").click()
        page.get_by_label("API key").wait_for()


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_pages_fit_a_phone_in_light_and_dark(
    chromium: Browser, deployment: Deployment, name: str, scheme: str, tmp_path: Path
) -> None:
    with chromium.new_context(viewport=PHONE, color_scheme=scheme) as context:  # type: ignore[arg-type]
        page = sign_in(context, deployment)
        for picture, path in {
            "first": "/",
            "model": f"/models/{name}",
            "version": f"/models/{name}/versions/1",
            "privacy": "/privacy",
            "in": "/sign-in",
        }.items():
            response = page.goto(deployment.url + path)
            assert response is not None
            assert response.status == 200
            wide = page.evaluate("document.documentElement.scrollWidth")
            assert wide <= PHONE["width"], f"{path} is {wide} wide"
            ground = page.evaluate("getComputedStyle(document.body).backgroundColor")
            assert (sum(map(int, ground[4:-1].split(","))) > 380) == (scheme == "light")
            keep(page, f"phone-{picture}-{scheme}.png", tmp_path)
