"""Authentication by API key, and the scopes that endpoints require."""

import asyncio
import hashlib
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Annotated, Any

from fastapi import Depends, Request
from fastapi.security import HTTPBearer
from starlette.concurrency import run_in_threadpool

from core.errors import Forbidden, Malformed, Unauthorized, Unavailable
from core.keys import keyring
from core.tables.keys import Scope
from service.context import Context, context_of

bearer = HTTPBearer(auto_error=False, description="API key of the form `amend_<id>_<secret>`.")


@dataclass(frozen=True)
class Caller:
    """The API key that a request was sent with."""

    key_id: str
    credential: str = field(repr=False)
    scopes: frozenset[str]
    models: frozenset[str] | None
    """Names of the models that the key is limited to; None: no limit."""

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
    context.rate_limit.admit(caller.key_id)
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
    caller, stale = await run_in_threadpool(identify, context, text.strip())
    context.callers.put(hashlib.sha256(authorization).digest(), caller)
    if stale:
        # In the background: no request waits for the time of last use.
        asyncio.get_running_loop().run_in_executor(None, note_use, context, caller.key_id)
    return caller


def identify(context: Context, text: str) -> tuple[Caller, bool]:
    """The caller with this key, and whether its time of last use must be updated. Raises Unauthorized if unknown."""
    with context.database.read() as session:
        key = keyring.check(session, text)
        if key is None:
            raise Unauthorized("key_unknown", "The API key is unknown, expired or revoked.")
        stale = keyring.is_stale(key)
        models = None if key.models is None else frozenset(key.models)
        return Caller(key.id, text, frozenset(key.scopes), models), stale


def note_use(context: Context, key_id: str) -> None:
    with suppress(Unavailable), context.database.write() as session:
        keyring.record_use(session, key_id)


Reader = Annotated[Caller, require_scope(Scope.READ)]
Ingester = Annotated[Caller, require_scope(Scope.INGEST)]
Remover = Annotated[Caller, require_scope(Scope.INGEST, Scope.ERASE)]
Eraser = Annotated[Caller, require_scope(Scope.ERASE)]
Downloader = Annotated[Caller, require_scope(Scope.WEIGHTS)]
Admin = Annotated[Caller, require_scope(Scope.ADMIN)]
