"""The OpenID Connect provider at which people sign in: its addresses, its keys, and its tokens.

Amend uses the authorization code flow with PKCE for pages, and accepts access tokens of the provider over REST. Both
are JSON Web Tokens that the provider has signed; joserfc checks them.
"""

import hashlib
import secrets
import threading
import time
from base64 import urlsafe_b64encode
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlencode

import httpx
import structlog
from anyio import CapacityLimiter
from joserfc import jwt
from joserfc.errors import JoseError
from joserfc.jwk import Key, KeySet

from core.errors import Unauthorized, Unavailable
from core.keys import people
from core.keys.people import Identity
from core.roles import parse_roles
from core.settings import Settings

log = structlog.get_logger("service")

ALGORITHMS = ("RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512", "EdDSA", "Ed25519")
"""Asymmetric ones only: the provider's public keys must not be usable to sign."""
METADATA_SECONDS = 3600.0
"""The addresses and keys of the provider are read again after this time."""
RELOAD_SECONDS = 30.0
"""A token with an unknown key makes Amend read the keys again, but not more often than this."""
OUTAGE_SECONDS = 3600.0
"""If the provider is down then, its old keys are used for this much longer."""
RETRY_SECONDS = 10.0
"""If the provider is down, Amend tries again after this time; until then, requests fail at once."""
MAX_THREADS = 8
"""Limit of the threads that wait for the provider, so that a slow one leaves threads for requests with API keys."""
CLOCK_LEEWAY = 60
"""Seconds by which the clocks of Amend and the provider may differ."""
TIMEOUT = httpx.Timeout(5.0)
MAX_RESPONSE_BYTES = 2**20
UNAVAILABLE = "identity_provider_unavailable"
ENDPOINTS = ("authorization_endpoint", "token_endpoint", "jwks_uri")


@dataclass(frozen=True)
class SignInAttempt:
    """What the browser must bring back from the provider."""

    state: str
    nonce: str
    verifier: str

    @classmethod
    def begin(cls) -> "SignInAttempt":
        return cls(secrets.token_urlsafe(24), secrets.token_urlsafe(24), secrets.token_urlsafe(48))

    @property
    def challenge(self) -> str:
        return urlsafe_b64encode(hashlib.sha256(self.verifier.encode()).digest()).rstrip(b"=").decode()


@dataclass(frozen=True)
class Loaded:
    """The provider's addresses and keys."""

    metadata: dict[str, Any]
    keys: KeySet
    since: float

    @property
    def age(self) -> float:
        return time.monotonic() - self.since


class IdentityProvider:
    """One per process. Its methods wait for the network, so call them in threads."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.issuer = settings.oidc_issuer
        self.client_id = settings.oidc_client_id
        self.roles = parse_roles(settings.oidc_roles)
        self.threads = CapacityLimiter(MAX_THREADS)
        self._lock = threading.Lock()
        self._loaded: Loaded | None = None
        self._failed = (-RETRY_SECONDS, "")
        """When the provider was last found to be down, and the message of the error."""

    def authorization_url(self, attempt: SignInAttempt, redirect_uri: str) -> str:
        """The address of the provider's sign-in page."""
        query = {
            "response_type": "code",
            "client_id": self.client_id,
            "redirect_uri": redirect_uri,
            "scope": self.settings.oidc_scopes,
            "state": attempt.state,
            "nonce": attempt.nonce,
            "code_challenge": attempt.challenge,
            "code_challenge_method": "S256",
        }
        endpoint = str(self.metadata()["authorization_endpoint"])
        return f"{endpoint}{'&' if '?' in endpoint else '?'}{urlencode(query)}"

    def redeem(self, code: str, attempt: SignInAttempt, redirect_uri: str) -> Identity:
        """The person whose sign-in produced a code. Raises Unauthorized."""
        form = {
            "grant_type": "authorization_code",
            "code": code,
            "redirect_uri": redirect_uri,
            "code_verifier": attempt.verifier,
        }
        secret = self.settings.oidc_client_secret.get_secret_value()
        methods = self.metadata().get("token_endpoint_auth_methods_supported", ["client_secret_basic"])
        auth = httpx.BasicAuth(self.client_id, secret) if secret and "client_secret_basic" in methods else None
        if auth is None:
            form |= {"client_id": self.client_id} | ({"client_secret": secret} if secret else {})
        answer = self._request("POST", self.metadata()["token_endpoint"], data=form, auth=auth)
        if "id_token" not in answer:
            log.warning("sign_in_refused_by_provider", error=str(answer.get("error"))[:100])  # such as invalid_client
            raise Unauthorized("token_invalid", "The identity provider did not accept the sign-in. Sign in again.")
        claims = self._check(str(answer["id_token"]), {self.client_id})
        if not secrets.compare_digest(str(claims.get("nonce", "")).encode(), attempt.nonce.encode()):
            raise Unauthorized("token_invalid", "The sign-in was started in another browser. Sign in again.")
        userinfo = self.metadata().get("userinfo_endpoint")
        if find_claim(claims, self.settings.oidc_groups) is None and userinfo and "access_token" in answer:
            headers = {"Authorization": f"Bearer {answer['access_token']}"}
            more = self._request("GET", userinfo, headers=headers)
            if more.get("sub") == claims["sub"]:
                claims = more | claims
        return self._identity(claims)

    def identify(self, token: str) -> Identity:
        """The person whom an access token names. Raises Unauthorized."""
        return self._identity(self._check(token, {self.settings.oidc_audience or self.client_id}))

    def metadata(self) -> Mapping[str, Any]:
        """The provider's description of itself."""
        return self._load(METADATA_SECONDS).metadata

    def _load(self, max_age: float) -> Loaded:
        """Read addresses and keys, unless those in memory are younger than `max_age` seconds."""
        if (known := self._loaded) is not None and known.age <= max_age:
            return known  # without the lock, which a thread holds while it waits for the provider
        with self._lock:
            known = self._loaded
            if known is not None and known.age <= max_age:
                return known
            try:
                since, message = self._failed
                if time.monotonic() - since < RETRY_SECONDS:
                    raise Unavailable(UNAVAILABLE, message)
                try:
                    self._loaded = known = self._read()
                except Unavailable as error:
                    self._failed = (time.monotonic(), error.detail)
                    log.warning("identity_provider_unavailable", reason=error.detail)
                    raise
            except Unavailable:
                if known is None or known.age > METADATA_SECONDS + OUTAGE_SECONDS:
                    raise
            return known

    def _read(self) -> Loaded:
        metadata = self._request("GET", f"{self.issuer}/.well-known/openid-configuration")
        if str(metadata.get("issuer", "")).rstrip("/") != self.issuer:
            raise unavailable("It names a different issuer than AMEND_OIDC_ISSUER.")
        if any(not isinstance(metadata.get(name), str) for name in ENDPOINTS):
            raise unavailable("Its description is incomplete.")
        listed = self._request("GET", metadata["jwks_uri"]).get("keys")
        keys = [key for each in (listed if isinstance(listed, list) else []) for key in read_key(each)]
        if not keys:
            raise unavailable("Its keys cannot be read.")
        return Loaded(metadata, KeySet(keys), time.monotonic())

    def _request(self, method: str, url: str, **options: Any) -> dict[str, Any]:
        """The JSON object that the provider responds with; for a refused request its error."""
        try:
            with httpx.Client(timeout=TIMEOUT) as client, client.stream(method, url, **options) as response:
                body = b""
                for chunk in response.iter_bytes():
                    body += chunk
                    if len(body) > MAX_RESPONSE_BYTES:
                        raise unavailable("Its response is too large.")
            if response.status_code >= httpx.codes.INTERNAL_SERVER_ERROR:
                raise unavailable(f"It responded with {response.status_code}.")
            answer = httpx.Response(response.status_code, content=body).json()
        except (httpx.HTTPError, httpx.InvalidURL, ValueError) as error:
            raise unavailable("It cannot be reached, or does not answer with JSON.") from error
        return answer if isinstance(answer, dict) else {}

    def _check(self, token: str, audiences: set[str]) -> dict[str, Any]:
        """The claims of a token that the provider has signed for one of the audiences."""
        known = self._load(METADATA_SECONDS)
        try:
            try:
                decoded = jwt.decode(token, known.keys, algorithms=ALGORITHMS)
            except JoseError:
                newer = self._load(RELOAD_SECONDS)  # the provider may have new keys
                if newer is known:
                    raise
                decoded = jwt.decode(token, newer.keys, algorithms=ALGORITHMS)
            jwt.JWTClaimsRegistry(
                leeway=CLOCK_LEEWAY,
                iss={"essential": True, "values": [self.issuer, f"{self.issuer}/"]},
                aud={"essential": True, "values": sorted(audiences)},
                sub={"essential": True},
                exp={"essential": True},
            ).validate(decoded.claims)
        except (JoseError, ValueError, TypeError) as error:
            message = "The token is not a valid access token of the identity provider, or it has expired."
            raise Unauthorized("token_invalid", message) from error
        return decoded.claims

    def _identity(self, claims: Mapping[str, Any]) -> Identity:
        found = find_claim(claims, self.settings.oidc_groups)
        groups = [found] if isinstance(found, str) else [g for g in found or () if isinstance(g, str)]
        scopes = people.scopes_of(groups, self.roles)
        subject = str(claims["sub"])
        texts = (claims.get("name") or claims.get("preferred_username"), claims.get("email"))
        name, address = (text if isinstance(text, str) else None for text in texts)
        return Identity(self.issuer, subject, people.readable_name(name, address, subject), scopes)


def find_claim(claims: Mapping[str, Any], path: str) -> Any:
    """A claim, by its name or by a path of names.

    >>> find_claim({"realm_access": {"roles": ["a"]}}, "realm_access.roles")
    ['a']
    """
    if path in claims:
        return claims[path]
    found: Any = claims
    for name in path.split("."):
        found = found.get(name) if isinstance(found, Mapping) else None
    return found


def read_key(document: Any) -> list[Key]:
    """A key of the provider; none if it is of an unknown kind, which RFC 7517 asks to ignore."""
    try:
        return KeySet.import_key_set({"keys": [document]}).keys
    except (AttributeError, JoseError, KeyError, TypeError, ValueError):
        return []


def unavailable(reason: str) -> Unavailable:
    return Unavailable(UNAVAILABLE, f"The identity provider cannot be used. {reason}")
