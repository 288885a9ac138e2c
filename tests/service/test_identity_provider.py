"""What tokens Amend accepts, and what happens while the identity provider changes its keys or is down."""

from __future__ import annotations

import time

import httpx
import pytest
from joserfc import jwt
from joserfc.jwk import ECKey, RSAKey

from core.errors import Unauthorized, Unavailable
from core.settings import Settings
from core.tables.keys import Scope
from service.http import identity_provider
from service.http.identity_provider import IdentityProvider, SignInAttempt

ISSUER, CLIENT = "https://id.example.org/realms/company", "amend"


class Provider:
    """The responses of a provider, and the number of requests that it got."""

    def __init__(self) -> None:
        self.key = RSAKey.generate_key(2048, {"kid": "first"})
        self.other_keys: list[object] = []
        self.down = False
        self.requests = 0
        self.token_response: dict[str, str] = {}

    def rotate(self) -> None:
        self.key = ECKey.generate_key("P-256", {"kid": "second"})  # type: ignore[assignment]

    def token(self, **changes: object) -> str:
        claims = {"iss": ISSUER, "aud": CLIENT, "sub": "7", "groups": ["ml-team"], "exp": time.time() + 600, **changes}
        kept = {name: value for name, value in claims.items() if value is not None}
        algorithm = "RS256" if self.key.kid == "first" else "ES256"
        return jwt.encode({"alg": algorithm, "kid": self.key.kid}, kept, self.key)

    def handle(self, request: httpx.Request) -> httpx.Response:
        self.requests += 1
        if self.down:
            raise httpx.ConnectTimeout("timed out")
        if request.url.path.endswith("/token"):
            return httpx.Response(200, json=self.token_response)
        if request.url.path.endswith("/keys"):
            return httpx.Response(200, json={"keys": [*self.other_keys, self.key.as_dict(private=False)]})
        names = {"authorization_endpoint": "authorize", "token_endpoint": "token", "jwks_uri": "keys"}
        addresses = {name: f"{ISSUER}/{path}" for name, path in names.items()}
        return httpx.Response(200, json={"issuer": ISSUER, **addresses})


class Time:
    """Stands in for the module `time`: it passes when a test says so."""

    def __init__(self) -> None:
        self.seconds = 0.0

    def monotonic(self) -> float:
        return self.seconds


@pytest.fixture
def provider(monkeypatch: pytest.MonkeyPatch) -> Provider:
    provider, client = Provider(), httpx.Client
    transport = httpx.MockTransport(provider.handle)
    monkeypatch.setattr(httpx, "Client", lambda **options: client(transport=transport, **options))
    return provider


@pytest.fixture
def passing(monkeypatch: pytest.MonkeyPatch) -> Time:
    passing = Time()
    monkeypatch.setattr(identity_provider, "time", passing)
    return passing


@pytest.fixture
def amend() -> IdentityProvider:
    given = {"oidc_issuer": ISSUER, "oidc_client_id": CLIENT, "oidc_roles": "ml-team=viewer"}
    return IdentityProvider(Settings(**given))  # type: ignore[arg-type]


def test_a_token_of_the_provider_names_a_person_and_their_scopes(provider: Provider, amend: IdentityProvider) -> None:
    identity = amend.identify(provider.token(name="Ada", aud=["other", CLIENT]))
    assert (identity.subject, identity.name, identity.scopes) == ("7", "Ada", {Scope.READ})
    assert amend.identify(provider.token(groups=["canteen"])).scopes == frozenset()


@pytest.mark.parametrize(
    "changes",
    [
        {"iss": "https://id.example.org/realms/other"},
        {"iss": None},
        {"aud": "another-client"},
        {"aud": ["another-client"]},
        {"aud": None},
        {"exp": 1_000_000_000},
        {"exp": None},
        {"exp": "tomorrow"},
        {"nbf": 4_000_000_000},
        {"sub": None},
        {"sub": ""},
    ],
    ids=repr,
)
def test_a_token_for_somebody_else_or_for_another_time_is_refused(
    provider: Provider, amend: IdentityProvider, changes: dict[str, object]
) -> None:
    with pytest.raises(Unauthorized, match="not a valid access token"):
        amend.identify(provider.token(**changes))


def test_clocks_may_differ_by_a_minute(provider: Provider, amend: IdentityProvider) -> None:
    assert amend.identify(provider.token(exp=time.time() - 30, nbf=time.time() + 30)).subject == "7"


def test_an_id_token_of_another_sign_in_is_refused(provider: Provider, amend: IdentityProvider) -> None:
    attempt = SignInAttempt.begin()
    provider.token_response = {"id_token": provider.token(nonce=attempt.nonce)}
    assert amend.redeem("code", attempt, "https://amend.example.org").subject == "7"
    for nonce in ("another", "", None, "ö"):
        provider.token_response = {"id_token": provider.token(nonce=nonce)}
        with pytest.raises(Unauthorized, match="another browser"):
            amend.redeem("code", attempt, "https://amend.example.org")


@pytest.mark.parametrize(
    "unknown",
    [
        {"kty": "EC", "crv": "BP-256", "kid": "brainpool", "x": "AAAA", "y": "AAAA"},
        {"kty": "AKP", "alg": "ML-DSA-65", "kid": "lattice", "pub": "AAAA"},
        {"kty": "RSA", "kid": "incomplete"},
        {"kid": "nameless"},
        "a key",
    ],
    ids=repr,
)
def test_a_key_of_an_unknown_kind_does_not_spoil_the_others(
    provider: Provider, amend: IdentityProvider, unknown: object
) -> None:
    provider.other_keys = [unknown]
    assert amend.identify(provider.token()).subject == "7"


def test_new_keys_of_the_provider_are_found_but_not_looked_for_all_the_time(
    provider: Provider, amend: IdentityProvider, passing: Time
) -> None:
    old = provider.token()
    assert amend.identify(old).subject == "7"
    provider.rotate()
    with pytest.raises(Unauthorized):
        amend.identify(provider.token())  # the keys were read a moment ago
    assert provider.requests == 2
    passing.seconds += identity_provider.RELOAD_SECONDS + 1
    assert amend.identify(provider.token()).subject == "7"
    assert provider.requests == 4
    with pytest.raises(Unauthorized):
        amend.identify(old)


def test_tokens_work_while_the_provider_is_down_for_an_hour(
    provider: Provider, amend: IdentityProvider, passing: Time
) -> None:
    token, forged = provider.token(), Provider().token()
    amend.identify(token)
    provider.down = True
    passing.seconds += identity_provider.RELOAD_SECONDS + 1
    with pytest.raises(Unauthorized):
        amend.identify(forged)  # rather than Unavailable: anybody could send such tokens
    passing.seconds += identity_provider.METADATA_SECONDS
    assert amend.identify(token).subject == "7"
    passing.seconds += identity_provider.OUTAGE_SECONDS
    with pytest.raises(Unavailable):
        amend.identify(token)


def test_a_provider_that_is_down_is_not_asked_for_every_token(
    provider: Provider, amend: IdentityProvider, passing: Time
) -> None:
    provider.down = True
    for _ in range(5):
        with pytest.raises(Unavailable):
            amend.identify(provider.token())
    assert provider.requests == 1
    provider.down = False
    passing.seconds += identity_provider.RETRY_SECONDS + 1
    assert amend.identify(provider.token()).subject == "7"
