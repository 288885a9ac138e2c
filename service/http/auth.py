"""Authentication by API key or by a token of the identity provider, and the scopes that endpoints require."""

import asyncio
import hashlib
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Annotated, Any

from anyio import to_thread
from fastapi import Depends, Request
from fastapi.security import HTTPBearer
from starlette.concurrency import run_in_threadpool

from core.errors import Forbidden, Malformed, Unauthorized, Unavailable
from core.keys import api_keys, people, sign_ins
from core.keys.quotas import Quota
from core.tables.keys import Key, Scope
from service.context import Context, context_of
from service.http.identity_provider import IdentityProvider

bearer = HTTPBearer(
    auto_error=False,
    description="API key of the form `amend_<id>_<secret>`, or an access token of the OpenID Connect provider.",
)


@dataclass(frozen=True)
class Caller:
    """The API key that a request was sent with, or the person who sent it."""

    key_id: str
    credential: str = field(repr=False)
    """Idempotency keys belong to it: the text of the API key, or the person's id."""
    scopes: frozenset[str]
    models: frozenset[str] | None
    """Names of the models that the key is limited to; None: no limit."""
    quota: Quota | None = None

    @property
    def requests_per_second(self) -> float | None:
        """The key's own rate limit; None: that of all keys."""
        return None if self.quota is None else self.quota.requests_per_second

    def require(self, *scopes: Scope) -> None:
        """Raise Forbidden unless the key has one of the scopes."""
        if not self.scopes.intersection({*scopes, Scope.ADMIN}):
            wanted = " or ".join(repr(scope.value) for scope in scopes)
            raise Forbidden("scope_missing", f"This request requires an API key with the scope {wanted}.")

    def require_all_models(self) -> None:
        if self.models is not None:
            raise Forbidden("key_limited", "This request requires an API key that is not limited to certain models.")


@dataclass(frozen=True)
class ScopeCheck:
    """Scopes of which an endpoint requires one."""

    scopes: tuple[Scope, ...]

    async def find_caller(self, request: Request, _scheme: Annotated[Any, Depends(bearer)]) -> Caller:
        """FastAPI dependency: the caller; raises Forbidden if the key has none of the scopes."""
        caller: Caller = getattr(request.state, "caller", None) or await authenticate(request)
        caller.require(*self.scopes)
        return caller


def require_scope(*scopes: Scope) -> Any:
    return Depends(ScopeCheck(scopes).find_caller)


async def authenticate(request: Request) -> Caller:
    """The caller of a request. Raises Unauthorized for an unknown key and TooMany above the rate limit."""
    given = [value for name, value in request.headers.raw if name == b"authorization"]
    if len(given) > 1:
        # A proxy in front of the service may have checked a different one.
        raise Malformed("key_repeated", "The request has several Authorization headers. Send exactly one.")
    authorization, context = b"".join(given), context_of(request)
    caller = find_cached_caller(authorization, context) or await check(authorization, context)
    context.rate_limit.admit(caller.key_id, caller.requests_per_second)
    return caller


def find_cached_caller(authorization: bytes, context: Context) -> Caller | None:
    """The caller of an Authorization header that was checked less than `cache_seconds` ago."""
    caller: Caller | None = context.callers.get(hashlib.sha256(authorization).digest())
    return caller


async def check(authorization: bytes, context: Context) -> Caller:
    """Look up the caller of an Authorization header in the database."""
    kind, _, text = authorization.decode("latin-1").partition(" ")
    if kind.lower() != "bearer":
        raise Unauthorized("key_missing", "The API key is missing. Send it as `Authorization: Bearer amend_...`.")
    text, provider = text.strip(), context.identity_provider
    if provider is None or text.startswith(api_keys.PREFIX):
        caller, stale = await run_in_threadpool(identify_key, context, text)
    else:
        caller, stale = await to_thread.run_sync(identify_person, context, provider, text, limiter=provider.threads)
    context.callers.put(hashlib.sha256(authorization).digest(), caller)
    if stale:
        # In the background: no request waits for the time of last use.
        asyncio.get_running_loop().run_in_executor(None, note_use, context, caller.key_id)
    return caller


def identify_key(context: Context, text: str) -> tuple[Caller, bool]:
    """The caller with this key, and whether the time of last use must be updated. Raises Unauthorized if it is
    unknown.
    """
    with context.database.read() as session:
        key = api_keys.check(session, text)
        if key is None:
            raise Unauthorized("key_unknown", "The API key is unknown, expired or revoked.")
        stale = api_keys.is_stale(key)
        return caller_of(key, text), stale


def identify_person(context: Context, provider: IdentityProvider, token: str) -> tuple[Caller, bool]:
    """The caller whom an access token names, with the scopes of the token's groups."""
    identity = provider.identify(token)
    people.require_role(identity)
    with context.database.read() as session:
        key = people.find(session, identity)
        # a token may be older than the sign-in of an open session, and must not give the session its scopes
        if key is not None and (people.is_current(key, identity) or sign_ins.has_session(session, key.id)):
            return caller_of_person(key, identity), api_keys.is_stale(key)
    with context.database.write() as session:
        return caller_of_person(people.save(session, identity), identity), True


def caller_of(key: Key, credential: str) -> Caller:
    models = None if key.models is None else frozenset(key.models)
    quota = None if key.quota is None else Quota.model_validate(key.quota)
    return Caller(key.id, credential, frozenset(key.scopes), models, quota)


def caller_of_person(key: Key, identity: people.Identity) -> Caller:
    return replace(caller_of(key, f"person {key.id}"), scopes=frozenset(people.names_of(identity.scopes)))


def note_use(context: Context, key_id: str) -> None:
    with suppress(Unavailable), context.database.write() as session:
        api_keys.record_use(session, key_id)


Reader = Annotated[Caller, require_scope(Scope.READ)]
Ingester = Annotated[Caller, require_scope(Scope.INGEST)]
Remover = Annotated[Caller, require_scope(Scope.INGEST, Scope.ERASE)]
Eraser = Annotated[Caller, require_scope(Scope.ERASE)]
Approver = Annotated[Caller, require_scope(Scope.ERASE, Scope.APPROVE)]
Analyst = Annotated[Caller, require_scope(Scope.ANALYSE)]
Downloader = Annotated[Caller, require_scope(Scope.WEIGHTS)]
Admin = Annotated[Caller, require_scope(Scope.ADMIN)]
