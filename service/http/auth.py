"""Who is calling, and what they may do."""

from __future__ import annotations

import asyncio
import difflib
import hashlib
from collections.abc import Callable, Coroutine
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Annotated, Any

from fastapi import Depends, Request
from fastapi._compat import ModelField
from fastapi.dependencies.utils import get_flat_params
from fastapi.params import Query
from fastapi.routing import APIRoute
from fastapi.security import HTTPBearer
from starlette.concurrency import run_in_threadpool
from starlette.responses import Response

from core.errors import Forbidden, Invalid, Malformed, Unauthorized, Unavailable, Unsupported
from core.keys import keyring
from core.tables.keys import Scope
from service.context import Context, context_of
from service.http.decompression import decompress
from service.http.json_bodies import MAX_JSON_BYTES, ReadRequest, parse_json, refuse_fields
from service.http.middleware import limit_body

bearer = HTTPBearer(auto_error=False, description="An API key: `amend_<id>_<secret>`.")


@dataclass(frozen=True)
class Caller:
    """The holder of a key."""

    key_id: str
    credential: str = field(repr=False)
    scopes: frozenset[str]
    models: frozenset[str] | None
    """The only models that exist for this caller; None: all."""

    def require(self, *scopes: Scope) -> None:
        """Forbidden, unless the key has one of the scopes."""
        if not self.scopes.intersection({*scopes, Scope.ADMIN}):
            wanted = " or ".join(repr(scope.value) for scope in scopes)
            raise Forbidden("scope_missing", f"This needs a key with the scope {wanted}.")

    def require_all_models(self) -> None:
        if self.models is not None:
            raise Forbidden("key_limited", "This needs a key that is not limited to some models.")


@dataclass(frozen=True)
class ScopeCheck:
    """What an endpoint asks of a key: one of the scopes."""

    scopes: tuple[Scope, ...]

    async def find_caller(self, request: Request, _scheme: Annotated[Any, Depends(bearer)]) -> Caller:
        """A dependency: the caller, if the key has one of them."""
        found: Caller = getattr(request.state, "caller", None) or await authenticate(request)
        found.require(*self.scopes)
        return found


def require_scope(*scopes: Scope) -> Any:
    return Depends(ScopeCheck(scopes).find_caller)


async def authenticate(request: Request) -> Caller:
    """Who sends a request; Unauthorized if nobody that we know, TooMany if they send too many."""
    given = [value for name, value in request.headers.raw if name == b"authorization"]
    if len(given) > 1:
        # a proxy may have looked at another one than we would
        raise Malformed("key_repeated", "Send one Authorization header; there are several.")
    authorization, context = b"".join(given), context_of(request)
    caller = find_recent(authorization, context) or await check(authorization, context)
    context.rate_limit.admit(caller.key_id)
    return caller


def find_recent(authorization: bytes, context: Context) -> Caller | None:
    """The caller whose Authorization header was checked a moment ago."""
    caller: Caller | None = context.callers.get(hashlib.sha256(authorization).digest())
    return caller


async def check(authorization: bytes, context: Context) -> Caller:
    """The caller of an Authorization header, as the database knows it."""
    kind, _, text = authorization.decode("latin-1").partition(" ")
    if kind.lower() != "bearer":
        raise Unauthorized("key_missing", "Send an API key: Authorization: Bearer amend_...")
    caller, stale = await run_in_threadpool(identify, context, text.strip())
    context.callers.put(hashlib.sha256(authorization).digest(), caller)
    if stale:
        # nobody waits for this note, and nothing depends on it
        asyncio.get_running_loop().run_in_executor(None, note_use, context, caller.key_id)
    return caller


class CheckedRoute(APIRoute):
    """A route that refuses query parameters which it does not know."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        handle = super().get_route_handler()
        known = {p.alias for p in get_flat_params(self.dependant) if isinstance(p.field_info, Query)}

        async def handle_checked(request: Request) -> Response:
            await self.check_caller(request)
            check_query(request, known)
            return await handle(await self.check_body(request))

        return handle_checked

    async def check_caller(self, request: Request) -> None:
        """Before anything else is looked at."""

    async def check_body(self, request: Request) -> Request:
        """Before anything of it is parsed; the request to go on with."""
        return request


class AuthenticatedRoute(CheckedRoute):
    """A route that looks at the key, its scopes and the headers before it reads a body: who may not call has nothing
    unpacked or parsed for them."""

    async def check_caller(self, request: Request) -> None:
        request.state.caller = caller = await authenticate(request)
        for dependency in self.dependant.dependencies:
            if isinstance(check := getattr(dependency.call, "__self__", None), ScopeCheck):
                caller.require(*check.scopes)

    async def check_body(self, request: Request) -> Request:
        if "requestBody" in (self.openapi_extra or {}):
            return await decompress(request, context_of(request).settings.max_body_bytes)
        if self.body_field is None:
            if request.method in ("GET", "HEAD") or is_empty(request):
                return request
            body = await read_within(request, MAX_JSON_BYTES)
            refuse_fields(body)
            return ReadRequest(request.scope, body)
        if is_empty(request):
            raise Invalid("request_invalid", f"Send a JSON body{required_fields(self.body_field)}.")
        if request.headers.get("content-type", "").partition(";")[0].strip().lower() != "application/json":
            raise Unsupported("content_type_unsupported", "Send the body as application/json.")
        body = await read_within(request, MAX_JSON_BYTES)
        return ReadRequest(request.scope, body, parse_json(body))


async def read_within(request: Request, limit: int) -> bytes:
    """The body of a request, unpacked; TooLarge before more than the limit is in memory."""
    length = request.headers.get("content-length", "")
    request = Request(request.scope, limit_body(request.receive, length, limit))
    return await (await decompress(request, limit)).body()


def is_empty(request: Request) -> bool:
    """Whether the headers announce no body."""
    return "transfer-encoding" not in request.headers and request.headers.get("content-length", "0") == "0"


def required_fields(body: ModelField) -> str:
    """The fields that a body must have, in words."""
    fields = getattr(body.field_info.annotation, "model_fields", {})
    needed = [repr(name) for name, field in fields.items() if field.is_required()]
    return f" with {' and '.join(needed)}" if needed else ""


def check_query(request: Request, known: set[str]) -> None:
    """Refuse what the endpoint would not look at: a misspelt filter would else be none."""
    given = [name for name, _ in request.query_params.multi_items()]
    for name in given:
        if name not in known:
            near = difflib.get_close_matches(name, known, n=1)
            there = f"known here: {', '.join(sorted(known))}" if known else "this takes none"
            there = f"did you mean {near[0]}? {there}" if near else there
            raise Invalid.at(("query", name), "query_invalid", f"is no query parameter; {there}")
        if given.count(name) > 1:
            raise Invalid.at(("query", name), "query_invalid", "is there more than once")


def identify(context: Context, text: str) -> tuple[Caller, bool]:
    """The holder of a key, and whether the time of its use is to be noted; Unauthorized if there is none."""
    with context.database.read() as session:
        key = keyring.check(session, text)
        if key is None:
            raise Unauthorized("key_unknown", "This key is unknown or was revoked.")
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
