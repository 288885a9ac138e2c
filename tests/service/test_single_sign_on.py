"""People sign in at an OpenID Connect provider, and do what the roles of their groups permit."""

from __future__ import annotations

import hmac
import json
import re
import time
from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Iterator
from dataclasses import dataclass
from urllib.parse import parse_qs, urlsplit

import httpx
import pytest
from joserfc import jwt
from joserfc.jwk import OctKey, RSAKey
from playwright.sync_api import Page, expect

from core.keys import people, sign_ins
from core.tables.keys import Key, Scope
from service.http.identity_provider import SignInAttempt
from tests import identity_provider
from tests.browser import browser
from tests.identity_provider import CLIENT_ID, CLIENT_SECRET, PASSWORD, Provider
from tests.service.expect import refused
from tests.stack import Stack

pytestmark = pytest.mark.xdist_group("single-sign-on")


@dataclass
class Installation:
    stack: Stack
    provider: Provider

    def sign_in_at_provider(self, client: httpx.Client, url: str, name: str, password: str = PASSWORD) -> str:
        """Follow the provider's pages as a person does; the address that it sends the browser to at the end."""
        response = client.get(url)
        for _ in range(10):
            if response.is_redirect:
                target = str(response.url.join(response.headers["location"]))
                if target.startswith(self.stack.url):
                    return target
                response = client.get(target)
                continue
            assert response.status_code == 200, response.text[:500]
            fields = {"login": name, "password": password, "answer": "accept"}
            token = re.search(r'name="csrf_token"[^>]*value="([^"]+)"', response.text)
            assert token is not None
            shown = {key: value for key, value in fields.items() if f'name="{key}"' in response.text}
            response = client.post(response.url, data={"csrf_token": token[1], **shown})
        raise AssertionError("the provider does not end the sign-in")

    def visit(self, name: str) -> httpx.Client:
        """A browser in which a person is signed in to the pages."""
        client = httpx.Client(base_url=self.stack.url, timeout=60)
        start = client.get("/sign-in/oidc?next=/privacy").headers["location"]
        response = client.get(self.sign_in_at_provider(client, start, name))
        assert response.status_code in (303, 403), response.text
        return client

    def token(self, name: str) -> str:
        """An ID token for the client, as a command-line tool gets one."""
        attempt, uri = SignInAttempt.begin(), f"{self.stack.url}/sign-in/oidc/callback"
        query = {"response_type": "code", "client_id": CLIENT_ID, "redirect_uri": uri, "nonce": attempt.nonce}
        query |= {"scope": "openid profile email groups", "state": attempt.state}
        query |= {"code_challenge": attempt.challenge, "code_challenge_method": "S256"}
        with httpx.Client(timeout=60) as client:
            url = httpx.URL(f"{self.provider.url}/oauth/authorize", params=query)
            target = self.sign_in_at_provider(client, str(url), name)
            form = {"grant_type": "authorization_code", "code": parse_qs(urlsplit(target).query)["code"][0]}
            form |= {"redirect_uri": uri, "code_verifier": attempt.verifier}
            answer = client.post(f"{self.provider.url}/oauth/token", data=form, auth=(CLIENT_ID, CLIENT_SECRET))
        return str(answer.raise_for_status().json()["id_token"])


@pytest.fixture(scope="module")
def installation(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Installation]:
    stack = Stack(tmp_path_factory.mktemp("sso"), "", AMEND_ERASURE_APPROVAL="second")
    with identity_provider.running(stack.url) as provider:
        stack.environment |= provider.settings()
        stack.start()
        try:
            yield Installation(stack, provider)
        finally:
            stack.stop()


@pytest.fixture(scope="module")
def page() -> Iterator[Page]:
    with browser() as chromium:
        yield chromium.new_page()


def test_a_person_signs_in_with_a_browser_and_the_audit_log_names_them(installation: Installation, page: Page) -> None:
    page.goto(installation.stack.url)
    page.get_by_role("link", name="Sign in with your organisation").click()
    page.locator("#login").fill("vera")
    page.locator("#login").press("Enter")
    page.locator("#password").fill(PASSWORD)
    page.locator("#password").press("Enter")
    page.wait_for_url(f"{installation.stack.url}/")
    assert "Vera Viewer (vera@example.org)" in page.locator("header").inner_text()
    expect(page.get_by_role("link", name="Privacy")).to_have_count(0)
    entries = installation.stack.request("GET", "/v1/audit?action=signed_in")["items"]
    assert entries[0]["actor"]["name"] == "Vera Viewer (vera@example.org)"


@pytest.mark.parametrize(
    ("person", "permitted"),
    [
        ("vera", {"read"}),
        ("ada", {"read", "ingest"}),
        ("olga", {"read", "erase", "decide"}),
        ("paul", {"read", "decide"}),
        ("root", {"read", "ingest", "erase", "decide", "keys"}),
    ],
)
def test_rest_calls_with_a_token_do_what_the_role_permits(
    installation: Installation, person: str, permitted: set[str]
) -> None:
    client = installation.stack.client(installation.token(person))
    missing = "00000000-0000-0000-0000-000000000000"
    calls = {
        "read": client.get("/v1/models"),
        "ingest": client.post("/v1/models/none/examples", json={"examples": [{"x": [1], "y": 1}]}),
        "erase": client.post("/v1/erasures", json={"subject": ""}),
        "decide": client.post(f"/v1/erasures/{missing}/approve"),
        "keys": client.get("/v1/keys"),
    }
    assert {name for name, response in calls.items() if response.status_code != 403} == permitted
    assert 401 not in {response.status_code for response in calls.values()}


def test_an_approver_approves_what_an_officer_has_filed_and_both_are_named(installation: Installation) -> None:
    officer = installation.stack.client(installation.token("olga"))
    filed = officer.post("/v1/erasures", json={"subject": "somebody@example.org"}).raise_for_status().json()
    assert filed["state"] == "held"
    refused(officer.post(f"/v1/erasures/{filed['id']}/approve"), 409, "approval_by_filer")
    approver = installation.visit("paul")
    shown = approver.get(f"/privacy/{filed['id']}").raise_for_status().text
    token = re.search(r'name="token" value="([^"]+)"', shown)
    assert token is not None
    assert "Olga Officer (olga@example.org)" in shown
    assert "Withdraw" not in shown  # which only officers may do
    form = {"token": token[1]}
    assert approver.post(f"/privacy/{filed['id']}/withdraw", data=form).status_code == 403
    assert approver.get("/privacy/file").status_code == 403
    assert approver.post(f"/privacy/{filed['id']}/approve", data=form).status_code == 303
    actors = {
        e["actor"]["name"] for e in installation.stack.request("GET", f"/v1/audit?erasure={filed['id']}")["items"]
    }
    assert actors == {"Olga Officer (olga@example.org)", "Paul Approver (paul@example.org)"}


def test_a_person_without_a_role_is_refused(installation: Installation) -> None:
    refused(installation.stack.client(installation.token("nemo")).get("/v1/models"), 403, "role_missing")
    assert installation.visit("nemo").get("/privacy").status_code == 303  # to the sign-in page


def test_a_token_gives_an_open_session_no_scopes(installation: Installation) -> None:
    visitor, token = installation.visit("root"), installation.token("root")
    stack = installation.stack
    [person] = [k for k in stack.request("GET", "/v1/keys")["items"] if k["name"].startswith("Rita")]
    with stack.database.write() as session:  # as if the person had left the operators before they signed in
        session.get_one(Key, person["id"]).scopes = ["read"]
    assert stack.client(token).get("/v1/keys").status_code == 200  # the token is older
    assert visitor.get("/").status_code == 200
    assert visitor.get("/privacy").status_code == 403
    with stack.database.write() as session:
        sign_ins.end_sessions(session, person["id"])
    assert stack.client(installation.token("root")).get("/v1/keys").status_code == 200
    [person] = [k for k in stack.request("GET", "/v1/keys")["items"] if k["name"].startswith("Rita")]
    assert person["scopes"] == ["admin"]


def test_a_person_who_has_lost_all_roles_is_signed_out_everywhere(installation: Installation) -> None:
    identity = people.Identity(installation.provider.url, subject_of(installation.token("nemo")), "Nemo", {Scope.ADMIN})
    with installation.stack.database.write() as session:  # as if the canteen had had a role earlier
        token = sign_ins.sign_in(session, people.save(session, identity).id)
    visitor = httpx.Client(base_url=installation.stack.url, cookies={f"amend_{installation.stack.port}": token})
    assert visitor.get("/privacy").status_code == 200
    installation.visit("nemo")
    assert visitor.get("/privacy").status_code == 303  # to the sign-in page
    [person] = [k for k in installation.stack.request("GET", "/v1/keys")["items"] if k["id"] == identity.key_id]
    assert person["scopes"] == []


def subject_of(token: str) -> str:
    body = token.split(".")[1]
    return str(json.loads(urlsafe_b64decode(body + "=" * (-len(body) % 4)))["sub"])


def test_a_token_opens_no_session(installation: Installation) -> None:
    form = {"key": installation.token("vera")}
    assert httpx.post(f"{installation.stack.url}/sign-in", data=form).status_code == 401


def test_a_revoked_person_is_locked_out_of_pages_and_rest(installation: Installation) -> None:
    token, visitor = installation.token("ada"), installation.visit("ada")
    client = installation.stack.client(token)
    assert client.get("/v1/models").status_code == 200
    assert visitor.get("/").status_code == 200
    [person] = [k for k in installation.stack.request("GET", "/v1/keys")["items"] if k["name"].startswith("Ada")]
    assert person["person"] is True
    installation.stack.client().delete(f"/v1/keys/{person['id']}").raise_for_status()
    refused(client.get("/v1/models"), 401, "key_unknown")
    assert "Sign in" in visitor.get("/").text


def test_a_sign_in_that_began_in_another_browser_is_refused(installation: Installation) -> None:
    victim, attacker = (httpx.Client(base_url=installation.stack.url, timeout=60) for _ in range(2))
    start = attacker.get("/sign-in/oidc").headers["location"]
    target = installation.sign_in_at_provider(attacker, start, "vera")
    victim.get("/sign-in/oidc")
    for browser_of in (victim, httpx.Client(base_url=installation.stack.url, timeout=60)):
        response = browser_of.get(target)
        assert (response.status_code, "Sign in again" in response.text) == (401, True)
    assert attacker.get(target).status_code == 303  # it is the attacker's own


def test_a_response_of_another_provider_is_refused(installation: Installation) -> None:
    with httpx.Client(base_url=installation.stack.url, timeout=60) as client:
        start = client.get("/sign-in/oidc").headers["location"]
        state = parse_qs(urlsplit(start).query)["state"][0]
        query = {"code": "a code", "state": state, "iss": "https://elsewhere.example"}
        assert client.get("/sign-in/oidc/callback", params=query).status_code == 401


def test_after_signing_in_only_our_own_pages_are_shown(installation: Installation) -> None:
    client = httpx.Client(base_url=installation.stack.url, timeout=60)
    start = client.get("/sign-in/oidc?next=https://elsewhere.example/").headers["location"]
    response = client.get(installation.sign_in_at_provider(client, start, "vera"))
    assert (response.status_code, response.headers.get("location")) == (303, "/"), response.text


def forge(provider: Provider, **changes: object) -> dict[str, object]:
    claims: dict[str, object] = {"iss": provider.url, "aud": CLIENT_ID, "sub": "root", "groups": ["operators"]}
    return {**claims, "exp": int(time.time()) + 600, "iat": int(time.time()), **changes}


def sign_with_public_key(public: RSAKey, claims: dict[str, object]) -> str:
    """What a library would accept that lets the token choose the algorithm. joserfc refuses to make such a token."""
    head, body, _ = jwt.encode({"alg": "HS256", "kid": public.kid}, claims, OctKey.generate_key()).split(".")
    code = hmac.digest(public.as_pem(private=False), f"{head}.{body}".encode(), "sha256")
    return f"{head}.{body}.{urlsafe_b64encode(code).rstrip(b'=').decode()}"


def test_forged_and_foreign_tokens_are_refused(installation: Installation) -> None:
    provider = installation.provider
    public = RSAKey.import_key(httpx.get(f"{provider.url}/oauth/jwks.json").json()["keys"][0])
    own = RSAKey.generate_key(2048)
    claims = forge(provider)
    head, body, signature = installation.token("vera").split(".")
    admin_body = jwt.encode({"alg": "RS256"}, claims, own).split(".")[1]
    forgeries = {
        "another key": jwt.encode({"alg": "RS256", "kid": public.kid}, claims, own),
        "the public key as a secret": sign_with_public_key(public, claims),
        "no signature": jwt.encode({"alg": "none"}, claims, own, algorithms=["none"]),
        "another content": f"{head}.{admin_body}.{signature}",
        "cut off": f"{head}.{body}.",
        "no token": "x",
    }
    for what, token in forgeries.items():
        response = installation.stack.client(token).get("/v1/models")
        assert (response.status_code, response.json()["code"]) == (401, "token_invalid"), what


def test_a_revoked_or_unknown_key_is_still_refused_with_its_own_code(installation: Installation) -> None:
    refused(installation.stack.client("amend_00000000_" + "x" * 30).get("/v1/models"), 401, "key_unknown")


def test_without_the_provider_api_keys_still_work_and_people_get_a_clear_error(
    tmp_path: pytest.TempPathFactory, installation: Installation
) -> None:
    settings = installation.provider.settings() | {"AMEND_OIDC_ISSUER": "http://localhost:1"}
    stack = Stack(tmp_path, "", **settings)  # type: ignore[arg-type]
    stack.start()
    try:
        assert stack.client().get("/v1/models").status_code == 200
        refused(stack.client("a.b.c").get("/v1/models"), 503, "identity_provider_unavailable")
        page = httpx.get(f"{stack.url}/sign-in/oidc")
        assert (page.status_code, "cannot be reached" in page.text) == (503, True)
    finally:
        stack.stop()
